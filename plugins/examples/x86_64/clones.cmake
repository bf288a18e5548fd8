# Loops marked with EXAMPLE_MULTIARCH use AVX2 if the processor has it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_definitions(EXAMPLE_TARGETS="avx2","default")
endif()
