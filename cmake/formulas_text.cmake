# kernels/formulas/activation.h as a string without preprocessor lines, for NVRTC:
# generated/kernels/cuda/pointwise/formulas_text.h in the build folder.
set(formulas ${CMAKE_CURRENT_LIST_DIR}/../kernels/formulas/activation.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${formulas})
file(READ ${formulas} OFSDP_FORMULAS_TEXT)
string(REGEX REPLACE "(^|\n)#[^\n]*" "\\1" OFSDP_FORMULAS_TEXT "${OFSDP_FORMULAS_TEXT}")
set(OFSDP_FORMULAS_TEXT "R\"cuda(${OFSDP_FORMULAS_TEXT})cuda\"")
configure_file(${CMAKE_CURRENT_LIST_DIR}/formulas_text.h.in
  ${PROJECT_BINARY_DIR}/generated/kernels/cuda/pointwise/formulas_text.h @ONLY)
