# Finds every library we use. Debian provides most of them. scripts/setup.sh puts oneDNN and ONNX into
# third_party/prefix, once for all presets and without our sanitizers. The preset aarch64 has a separate folder;
# scripts/aarch64.sh fills it.
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
# The oneDNN wheel is for x86-64. Without oneDNN, OpenBLAS computes products, also for convolutions.
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
# Images: without these libraries the build cannot read images.
find_package(PNG)
find_package(JPEG)
set(OFSDP_CODECS)
set(OFSDP_CODECS_FOLDER without_codecs)
if(PNG_FOUND AND JPEG_FOUND)
  set(OFSDP_CODECS PNG::PNG JPEG::JPEG)
  set(OFSDP_CODECS_FOLDER codecs)
endif()
# Files at addresses: the program loads libcurl when a run names an address. The build needs only its header; without it
# the build cannot read addresses.
find_path(OFSDP_CURL_INCLUDE curl/curl.h)
mark_as_advanced(OFSDP_CURL_INCLUDE)
set(OFSDP_CURL_FOLDER without_curl)
if(OFSDP_CURL_INCLUDE)
  set(OFSDP_CURL_FOLDER curl)
endif()
# Parquet files: Arrow's reader, in a separate library that is compiled against the wheel. Without it the build cannot
# read parquet files.
set(OFSDP_PYARROW)
if(NOT CMAKE_CROSSCOMPILING AND OFSDP_PROCESSOR STREQUAL "x86")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tp}/pyarrow.txt)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/setup.sh --parquet RESULT_VARIABLE failed)
  if(failed)
    message(STATUS "without libofsdp_parquet.so: scripts/setup.sh --parquet failed")
  else()
    set(OFSDP_PYARROW ${tp}/pyarrow)
    file(GLOB OFSDP_ARROW_LIBRARIES ${OFSDP_PYARROW}/lib/lib*.so.*)
  endif()
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
# OpenBLAS's build on libgomp's thread pool, regardless of Debian's alternatives: libofsdp_openblas.so has its folder in
# RUNPATH.
find_library(OFSDP_OPENBLAS openblas REQUIRED NO_DEFAULT_PATH
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
find_path(OFSDP_OPENBLAS_INCLUDE cblas.h REQUIRED NO_DEFAULT_PATH
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
mark_as_advanced(OFSDP_OPENBLAS OFSDP_OPENBLAS_INCLUDE)
find_package(GTest REQUIRED CONFIG)
find_package(benchmark REQUIRED CONFIG)
