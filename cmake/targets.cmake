# How our own targets are compiled, and the two functions that make them. Sources are globbed at every build: adding a
# file needs no change here.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

find_program(OFSDP_CCACHE ccache)
mark_as_advanced(OFSDP_CCACHE)
if(OFSDP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A second clone on this machine finds the objects of the first: paths below the source folder count as relative.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    ${OFSDP_CCACHE})
endif()

# [Note: the same bits everywhere] The vector body and the scalar tail of a loop must round alike, so products are not
# contracted into FMAs behind our back and -ffast-math is never used. What remains (no errno, no traps) changes no value.
# The baseline runs on any x86-64 since 2009; hot loops are cloned for AVX2 and AVX-512 by OFSDP_MULTIARCH (kernels/).
add_library(ofsdp_flags INTERFACE)
target_compile_options(ofsdp_flags INTERFACE
  -Wall -Wextra $<$<BOOL:${OFSDP_WERROR}>:-Werror>
  -march=x86-64-v2 -ffp-contract=off -fno-math-errno -fno-trapping-math)
# GCC 12 reports these two falsely about inlined std::vector and std::string.
target_compile_options(ofsdp_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict)
target_include_directories(ofsdp_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(ofsdp_flags INTERFACE Threads::Threads)
# gold links the tests, a whole program each, in half the time of the default linker.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold OFSDP_HAVE_GOLD)
if(OFSDP_HAVE_GOLD AND NOT OFSDP_SANITIZE)
  target_link_options(ofsdp_flags INTERFACE -fuse-ld=gold)
endif()
if(OFSDP_SANITIZE)
  target_compile_options(ofsdp_flags INTERFACE -fsanitize=${OFSDP_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(ofsdp_flags INTERFACE -fsanitize=${OFSDP_SANITIZE})
endif()

# ofsdp_library(NAME [SOURCES file...] [LIBS target...]): a static library, or an empty target while it has no source.
function(ofsdp_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PUBLIC ofsdp_flags ${arg_LIBS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ofsdp_flags ${arg_LIBS})
  endif()
endfunction()

# ofsdp_executable(NAME SOURCES file... [LIBS target...])
function(ofsdp_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ofsdp_flags ${arg_LIBS})
endfunction()
