# Finds every library we use. What Debian has comes from Debian; oneDNN and ONNX come from third_party/prefix, which
# scripts/setup.sh fills once for all presets. They are not built with our sanitizers.
set(tp ${PROJECT_SOURCE_DIR}/third_party)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tp}/requirements.txt ${PROJECT_SOURCE_DIR}/scripts/setup.sh)
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/setup.sh --third-party RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "third-party libraries are missing: run scripts/setup.sh (Debian 12, as root or with sudo) first")
endif()
list(PREPEND CMAKE_PREFIX_PATH ${tp}/prefix/local ${tp}/prefix) # Debian's pip adds "local"

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(TBB REQUIRED CONFIG)
find_package(ZLIB REQUIRED)
find_package(dnnl 3.2 REQUIRED CONFIG)
find_package(Protobuf REQUIRED)
find_package(ONNX 1.23 REQUIRED CONFIG)
find_package(fmt REQUIRED CONFIG)
find_package(yaml-cpp REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
find_library(OFSDP_SODIUM sodium REQUIRED)
mark_as_advanced(OFSDP_SODIUM)
# The build that runs on libgomp's pool, wherever Debian's alternatives point: CMake puts its folder into RUNPATH.
find_library(OFSDP_OPENBLAS openblas REQUIRED NO_DEFAULT_PATH
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
find_path(OFSDP_OPENBLAS_INCLUDE cblas.h REQUIRED NO_DEFAULT_PATH
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
mark_as_advanced(OFSDP_OPENBLAS OFSDP_OPENBLAS_INCLUDE)
add_library(ofsdp_openblas INTERFACE)
target_link_libraries(ofsdp_openblas INTERFACE ${OFSDP_OPENBLAS})
target_include_directories(ofsdp_openblas SYSTEM INTERFACE ${OFSDP_OPENBLAS_INCLUDE})
find_package(GTest REQUIRED CONFIG)
find_package(benchmark REQUIRED CONFIG)
