# Sets the kind of processor, OFSDP_PROCESSOR: x86 or aarch64. Folders with these names, here and next to the sources,
# have the code for only that kind. ofsdp_leave_out_others drops the other folders from a list of sources.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(OFSDP_PROCESSOR x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(OFSDP_PROCESSOR aarch64)
else()
  message(FATAL_ERROR "the processor must be x86-64 or aarch64, found ${CMAKE_SYSTEM_PROCESSOR}")
endif()
include(${CMAKE_CURRENT_LIST_DIR}/${OFSDP_PROCESSOR}/flags.cmake)

# CMake chooses between these folders by the processor and by the available libraries.
function(ofsdp_leave_out_others list)
  set(others x86 aarch64 onednn without_onednn codecs without_codecs curl without_curl)
  list(REMOVE_ITEM others ${OFSDP_PROCESSOR} ${OFSDP_ONEDNN_FOLDER} ${OFSDP_CODECS_FOLDER} ${OFSDP_CURL_FOLDER})
  foreach(other IN LISTS others)
    list(FILTER ${list} EXCLUDE REGEX "/${other}/[^/]*$")
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# The definition of OFSDP_MULTIARCH for this processor, as "kernels/cpu/multiarch.h".
configure_file(${CMAKE_CURRENT_LIST_DIR}/../kernels/cpu/${OFSDP_PROCESSOR}/multiarch.h
  ${PROJECT_BINARY_DIR}/generated/kernels/cpu/multiarch.h COPYONLY)
