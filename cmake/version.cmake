# Sets OFSDP_VERSION, such as "0.3.0", from its only definition, in library/onnx_fsdp.h.
set(header ${CMAKE_CURRENT_LIST_DIR}/../library/onnx_fsdp.h)
file(STRINGS ${header} OFSDP_VERSION REGEX "^#define ONNX_FSDP_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
list(TRANSFORM OFSDP_VERSION REPLACE "^.* " "")
list(JOIN OFSDP_VERSION "." OFSDP_VERSION)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
