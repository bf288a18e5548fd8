# How our own targets are compiled, and the two functions that make them. Sources are globbed at every build: adding a
# file needs no change here.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Kernels are compiled with -O3 (kernels/CMakeLists.txt), and the few loops outside of them that touch every element.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

find_program(OFSDP_CCACHE ccache)
mark_as_advanced(OFSDP_CCACHE)
if(OFSDP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A second clone on this machine finds the objects of the first: paths below the source folder count as relative.
  # `cmake -E env` would start in 9 milliseconds, env does in one.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${OFSDP_CCACHE})
endif()

# [Note: the same bits everywhere] The vector body and the scalar tail of a loop must round alike, so products are not
# contracted into FMAs behind our back (kernels/cpu/vector_math.h says where they are) and -ffast-math is never used. What
# remains (no errno, no traps) changes no value.
# The baseline is that of the kind of processor (cmake/processor.cmake).
add_library(ofsdp_flags INTERFACE)
target_compile_options(ofsdp_flags INTERFACE ${OFSDP_BASELINE} -ffp-contract=off -fno-math-errno -fno-trapping-math)
# Looking for what deserves a warning is a few hundredths of the time to compile, so a build with sanitizers does it in
# the tests alone (tests/CMakeLists.txt), some of which no other build compiles.
set(ofsdp_warnings -Wall -Wextra $<$<BOOL:${OFSDP_WERROR}>:-Werror>)
if(NOT OFSDP_SANITIZE)
  target_compile_options(ofsdp_flags INTERFACE ${ofsdp_warnings})
endif()
# GCC 12 reports these two falsely about inlined std::vector and std::string.
target_compile_options(ofsdp_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict)
# A joint file fills the compiler's heap several times; looking for garbage only from 1 GB on saves a twentieth of the time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(ofsdp_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
# [Note: hardening] What a bug in a reader of files or of the network would need is made hard: canaries, checked sizes of
# library calls, guarded stacks, landing pads, and tables of addresses that are read-only once the program runs. Functions
# of hot loops, which OFSDP_MULTIARCH marks, have no canary. tests/procs/hardening_test.cpp looks at the program.
target_compile_options(ofsdp_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong;-fstack-clash-protection;${OFSDP_LANDING_PADS}>)
target_link_options(ofsdp_flags INTERFACE LINKER:-z,relro,-z,now)
set(OFSDP_FORTIFY 3)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  set(OFSDP_FORTIFY 2)
endif()
if(NOT OFSDP_SANITIZE) # which check more, and do not know the checking calls
  target_compile_options(ofsdp_flags INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CONFIG:Release>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${OFSDP_FORTIFY}>)
endif()
# Libraries of ours lie next to the program, wherever it was copied to. What is installed has one path, there and in the
# build folder (cmake/install.cmake): CMake ends a path that it means to replace with a colon, and to the loader that is
# the folder that the program is started in, where a stranger's files may lie.
set(CMAKE_BUILD_RPATH "$ORIGIN")
set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../lib")
target_include_directories(ofsdp_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(ofsdp_flags INTERFACE Threads::Threads)
# lld links the tests, a whole program each, in a fourth of the time of the default linker, gold in half of it.
# libonnx_fsdp.so is linked by the default one, what users run.
include(CheckLinkerFlag)
foreach(linker lld gold)
  check_linker_flag(CXX -fuse-ld=${linker} OFSDP_HAVE_${linker})
  if(OFSDP_HAVE_${linker})
    target_link_options(ofsdp_flags INTERFACE $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,onnx_fsdp>>:-fuse-ld=${linker}>)
    break()
  endif()
endforeach()
if(OFSDP_SANITIZE)
  target_compile_options(ofsdp_flags INTERFACE -fsanitize=${OFSDP_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(ofsdp_flags INTERFACE -fsanitize=${OFSDP_SANITIZE})
  # A fifth of the time to compile, for what AddressSanitizer reports too (null, beyond an object) or what no source here
  # does (a virtual call through a pointer of another type; offsets of half of the address space).
  if(OFSDP_SANITIZE MATCHES "undefined")
    target_compile_options(ofsdp_flags INTERFACE -fno-sanitize=null,vptr,object-size,pointer-overflow)
    # Another fifth. Addresses are looked at where they come from the bytes of files and of other ranks, and in kernels.
    target_compile_options(ofsdp_flags INTERFACE
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:OFSDP_CHECKS_ALIGNMENT>>>:-fno-sanitize=alignment>)
  endif()
  # At a fixed address: UndefinedBehaviorSanitizer describes each check, and those are millions of relocations else.
  target_link_options(ofsdp_flags INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
endif()

# [Note: precompiled headers] Half of a compiler's time goes into headers that are not ours, so those of the standard
# library are parsed once for all libraries and those of GoogleTest once for all tests. A missing #include stays hidden
# that way: tests/headers.py checks that each header includes what it uses.
option(OFSDP_PRECOMPILE "Parse the headers of the standard library once for all libraries" ON)

# ofsdp_precompiled(NAME HEADERS header... [LIBS target...] [OPTIONS option...]): headers for
# target_precompile_headers(TARGET REUSE_FROM NAME) of targets with the same definitions.
function(ofsdp_precompiled name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBS;OPTIONS")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  target_link_libraries(${name} PRIVATE ofsdp_flags OpenMP::OpenMP_CXX fmt::fmt ${arg_LIBS})
  target_compile_options(${name} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

set(standard_headers <algorithm> <array> <atomic> <chrono> <cmath> <cstdio> <cstring> <filesystem> <fstream> <functional>
  <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <utility>
  <variant> <vector>)
if(OFSDP_PRECOMPILE)
  ofsdp_precompiled(ofsdp_standard_headers HEADERS ${standard_headers})
endif()

# [Note: joint compilation] The files of a folder are compiled together, up to twelve in one translation unit: headers are
# parsed and templates instantiated once for all of them, in less than half of the processor time. So a name of an
# unnamed namespace is unique in its folder. A long unit inlines less of the code that plans, not of hot loops: those are
# functions of their own (OFSDP_MULTIARCH, fastest_version), whose parts are always inlined.
# -DOFSDP_JOINT=OFF compiles each file by itself, for who changes one often.
option(OFSDP_JOINT "Compile the files of a folder together" ON)
set(OFSDP_JOINT_FILES 12)

function(ofsdp_compile_jointly target)
  if(NOT OFSDP_JOINT)
    return()
  endif()
  set(folder)
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(GET source PARENT_PATH parent)
    if(NOT parent STREQUAL folder)
      set(folder ${parent})
      set(count 0)
      cmake_path(RELATIVE_PATH parent BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
      string(REPLACE "/" "_" name ${name})
    endif()
    math(EXPR part "${count} / ${OFSDP_JOINT_FILES}")
    math(EXPR count "${count} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name}_${part})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# ofsdp_library(NAME [SOURCES file...] [LIBS target...] [OPTIONS option...]): a static library, or an empty target while it
# has no source. With options of its own it has precompiled headers of its own: <immintrin.h> ends with a pragma that
# brings back the optimization that the headers were compiled with, for all that follows in the file (GCC 12).
function(ofsdp_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS;OPTIONS")
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PUBLIC ofsdp_flags ${arg_LIBS})
    target_compile_options(${name} PRIVATE ${arg_OPTIONS})
    ofsdp_compile_jointly(${name} ${arg_SOURCES})
    if(OFSDP_PRECOMPILE AND arg_OPTIONS)
      target_precompile_headers(${name} PRIVATE ${standard_headers})
    elseif(OFSDP_PRECOMPILE)
      target_precompile_headers(${name} REUSE_FROM ofsdp_standard_headers)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ofsdp_flags ${arg_LIBS})
  endif()
endfunction()

# ofsdp_module(NAME SOURCES file... [LIBS target...]): a shared library that a program loads while it runs. Names of the
# libraries in it stay its own: an exported clone (OFSDP_MULTIARCH) would be resolved before the calls of its resolver are.
function(ofsdp_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_library(${name} MODULE ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ofsdp_flags ${arg_LIBS})
  target_link_options(${name} PRIVATE LINKER:--exclude-libs,ALL)
  ofsdp_compile_jointly(${name} ${arg_SOURCES})
  if(OFSDP_PRECOMPILE)
    target_precompile_headers(${name} REUSE_FROM ofsdp_standard_headers)
  endif()
endfunction()

# Code that runs once, before training, or as little in a step as the loop over its operations, takes two thirds of the
# time to compile with -O1.
function(ofsdp_optimize_less target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# ofsdp_executable(NAME SOURCES file... [LIBS target...])
function(ofsdp_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ofsdp_flags ${arg_LIBS})
endfunction()
