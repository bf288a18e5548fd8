# generated/kernels/core/device_build.h: a hash of the headers that a program and a device library share
# (kernels/core/device.h). The program refuses to load a library from other sources.
set(headers kernels/core/device.h kernels/core/device_values.h kernels/core/kernel.h
  kernels/core/tensor.h kernels/core/dtype.h kernels/base/status.h)
list(TRANSFORM headers PREPEND ${CMAKE_CURRENT_LIST_DIR}/../)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
set(hashes "${CMAKE_CXX_COMPILER_ID}")
foreach(header IN LISTS headers)
  file(SHA256 ${header} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 OFSDP_DEVICE_BUILD "${hashes}")
string(SUBSTRING ${OFSDP_DEVICE_BUILD} 0 16 OFSDP_DEVICE_BUILD)
configure_file(${CMAKE_CURRENT_LIST_DIR}/device_build.h.in
  ${PROJECT_BINARY_DIR}/generated/kernels/core/device_build.h @ONLY)
