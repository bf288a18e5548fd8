# Loops that are marked EXAMPLE_MULTIARCH run with AVX2 where the processor has it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_definitions(EXAMPLE_TARGETS="avx2","default")
endif()
