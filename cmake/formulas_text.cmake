# kernels/formulas as a string without preprocessor lines, for NVRTC:
# generated/kernels/cuda/pointwise/formulas_text.h in the build folder.
set(OFSDP_FORMULAS_TEXT "")
foreach(name activation gelu)
  set(formulas ${CMAKE_CURRENT_LIST_DIR}/../kernels/formulas/${name}.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${formulas})
  file(READ ${formulas} text)
  string(REGEX REPLACE "(^|\n)#[^\n]*" "\\1" text "${text}")
  string(APPEND OFSDP_FORMULAS_TEXT "${text}")
endforeach()
set(OFSDP_FORMULAS_TEXT "R\"cuda(${OFSDP_FORMULAS_TEXT})cuda\"")
configure_file(${CMAKE_CURRENT_LIST_DIR}/formulas_text.h.in
  ${PROJECT_BINARY_DIR}/generated/kernels/cuda/pointwise/formulas_text.h @ONLY)
