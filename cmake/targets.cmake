# The compilation of our own targets, and the functions that make them. Every build globs the sources: adding a file
# needs no change here.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Kernels (kernels/CMakeLists.txt) and the few other loops over all elements are compiled with -O3.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

find_program(OFSDP_CCACHE ccache)
mark_as_advanced(OFSDP_CCACHE)
if(OFSDP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A second clone on this machine finds the objects of the first, because paths below the source folder count as
  # relative. `cmake -E env` would start in 9 milliseconds; env starts in one.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${OFSDP_CCACHE})
endif()

# [Note: the same bits everywhere] The vector body and the scalar tail of a loop must round alike. So the compiler
# contracts no products into FMAs (kernels/cpu/vector_math.h has the explicit ones), and -ffast-math is never used. The
# two remaining flags (no errno, no traps) change no value.
# The baseline depends on the kind of processor (cmake/processor.cmake).
add_library(ofsdp_flags INTERFACE)
target_compile_options(ofsdp_flags INTERFACE ${OFSDP_BASELINE} -ffp-contract=off -fno-math-errno -fno-trapping-math)
# Warnings take a few hundredths of the time to compile. A build with sanitizers turns them on only in the tests
# (tests/CMakeLists.txt): no other build compiles some of these.
set(ofsdp_warnings -Wall -Wextra $<$<BOOL:${OFSDP_WERROR}>:-Werror>)
if(NOT OFSDP_SANITIZE)
  target_compile_options(ofsdp_flags INTERFACE ${ofsdp_warnings})
endif()
# GCC 12 gives these two warnings falsely for inlined std::vector and std::string.
target_compile_options(ofsdp_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict)
# A joint file fills the compiler's heap several times. Garbage collection only from 1 GB on saves a twentieth of the
# time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(ofsdp_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
# [Note: hardening] Several flags make a bug in a reader of files or of the network hard to exploit: canaries, checked
# sizes in library calls, guarded stacks, landing pads, and address tables that are read-only after the start. Functions
# of hot loops, marked with OFSDP_MULTIARCH, have no canary. tests/procs/hardening_test.cpp inspects the program.
target_compile_options(ofsdp_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong;-fstack-clash-protection;${OFSDP_LANDING_PADS}>)
target_link_options(ofsdp_flags INTERFACE LINKER:-z,relro,-z,now)
set(OFSDP_FORTIFY 3)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  set(OFSDP_FORTIFY 2)
endif()
if(NOT OFSDP_SANITIZE) # sanitizers check more, and do not know the checking calls
  target_compile_options(ofsdp_flags INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CONFIG:Release>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${OFSDP_FORTIFY}>)
endif()
# Our libraries are next to the program, wherever it is copied. Installed targets have the same run path in the build
# folder (cmake/install.cmake). Otherwise CMake would append a colon to the path for a later replacement. To the loader
# the empty entry means the current folder, which may have a stranger's files.
set(CMAKE_BUILD_RPATH "$ORIGIN")
set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../lib")
target_include_directories(ofsdp_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(ofsdp_flags INTERFACE Threads::Threads)
# Each test program contains the whole product. lld links it in a fourth of the default linker's time, gold in half of
# it. The default linker links libonnx_fsdp.so, the library that users run.
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
  # These checks cost a fifth of the time to compile. AddressSanitizer also reports some of their errors (null, beyond
  # an object). No source here makes the others (a virtual call through a pointer of another type; offsets of half of
  # the address space).
  if(OFSDP_SANITIZE MATCHES "undefined")
    target_compile_options(ofsdp_flags INTERFACE -fno-sanitize=null,vptr,object-size,pointer-overflow)
    # The alignment check costs another fifth. It is on in the code that computes addresses from bytes of files or of
    # other ranks, and in kernels.
    target_compile_options(ofsdp_flags INTERFACE
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:OFSDP_CHECKS_ALIGNMENT>>>:-fno-sanitize=alignment>)
  endif()
  # Programs have a fixed address: else UndefinedBehaviorSanitizer's descriptions of its checks need millions of
  # relocations.
  target_link_options(ofsdp_flags INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
endif()

# [Note: precompiled headers] A compiler spends half of its time on external headers. So the standard library's headers
# are parsed once for all libraries, and GoogleTest's once for all tests. This hides a missing #include, so
# tests/headers.py checks that each header includes the names it uses.
option(OFSDP_PRECOMPILE "Parse the headers of the standard library once for all libraries" ON)

# ofsdp_precompiled(NAME HEADERS header... [LIBS target...] [OPTIONS option...]): precompiles headers for targets with
# the same definitions; each calls target_precompile_headers(TARGET REUSE_FROM NAME).
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

# [Note: joint compilation] Up to twelve files of a folder are compiled as one translation unit. Headers are parsed and
# templates instantiated once for all of them, in less than half of the processor time. So a name in an unnamed
# namespace must be unique in its folder. The compiler inlines less planning code in a long unit, but not less of hot
# loops: these are separate functions (OFSDP_MULTIARCH, fastest_version), and their parts are always inlined.
# -DOFSDP_JOINT=OFF compiles each file by itself; this is faster if one file changes often.
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

# ofsdp_library(NAME [SOURCES file...] [LIBS target...] [OPTIONS option...]): a static library, or an empty target
# without sources. A library with OPTIONS gets its own precompiled headers. Otherwise the pragma at the end of
# <immintrin.h> would restore the headers' optimization level for the rest of the file (GCC 12).
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

# ofsdp_module(NAME SOURCES file... [LIBS target...]): a shared library that a program loads at run time. It does not
# export names of the libraries in it: the loader would resolve an exported clone (OFSDP_MULTIARCH) before the calls in
# the clone's resolver.
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

# For code that runs once before training, or only loops over the operations in a step. -O1 compiles in two thirds of
# the time.
function(ofsdp_optimize_less target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# ofsdp_executable(NAME SOURCES file... [LIBS target...])
function(ofsdp_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ofsdp_flags ${arg_LIBS})
endfunction()
