# Finds every library we use. What Debian has comes from Debian; oneDNN and ONNX come from third_party/prefix, which
# scripts/setup.sh fills once for all presets. They are not built with our sanitizers. The preset aarch64 has a folder of
# its own, which scripts/aarch64.sh fills.
set(tp ${PROJECT_SOURCE_DIR}/third_party)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tp}/requirements.txt ${PROJECT_SOURCE_DIR}/scripts/setup.sh)
set(setup setup.sh)
set(part --third-party)
set(prefix ${tp}/prefix)
if(CMAKE_CROSSCOMPILING)
  set(setup aarch64.sh)
  set(part --aarch64)
  set(prefix ${tp}/aarch64/prefix)
endif()
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/setup.sh ${part} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "third-party libraries are missing: run scripts/${setup} (Debian 12, as root or with sudo) first")
endif()
list(PREPEND CMAKE_PREFIX_PATH ${prefix}/local ${prefix}) # Debian's pip adds "local"

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(TBB REQUIRED CONFIG)
find_package(ZLIB REQUIRED)
# The wheel of oneDNN is for x86-64. Without a build of it OpenBLAS multiplies, for convolutions too.
if(OFSDP_PROCESSOR STREQUAL "x86")
  find_package(dnnl 3.2 REQUIRED CONFIG)
else()
  find_package(dnnl 3.2 CONFIG)
endif()
set(OFSDP_ONEDNN)
set(OFSDP_ONEDNN_FOLDER without_onednn)
if(TARGET DNNL::dnnl)
  set(OFSDP_ONEDNN DNNL::dnnl)
  set(OFSDP_ONEDNN_FOLDER onednn)
endif()
find_package(Protobuf REQUIRED)
find_package(ONNX 1.23 REQUIRED CONFIG)
target_compile_definitions(ONNX::onnx INTERFACE __ONNX_NO_DOC_STRINGS) # as setup.sh built it
find_package(fmt REQUIRED CONFIG)
find_package(yaml-cpp REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
find_library(OFSDP_SODIUM sodium REQUIRED)
find_library(OFSDP_PCRE2 pcre2-8 REQUIRED)
find_library(OFSDP_UTF8PROC utf8proc REQUIRED)
mark_as_advanced(OFSDP_SODIUM OFSDP_PCRE2 OFSDP_UTF8PROC)
# The build that runs on libgomp's pool, wherever Debian's alternatives point: libofsdp_openblas.so has its folder in RUNPATH.
find_library(OFSDP_OPENBLAS openblas REQUIRED NO_DEFAULT_PATH
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
find_path(OFSDP_OPENBLAS_INCLUDE cblas.h REQUIRED NO_DEFAULT_PATH
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
mark_as_advanced(OFSDP_OPENBLAS OFSDP_OPENBLAS_INCLUDE)
find_package(GTest REQUIRED CONFIG)
find_package(benchmark REQUIRED CONFIG)
