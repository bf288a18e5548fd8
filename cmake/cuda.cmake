# CUDA as a language, of OFSDP_CUDA=ON: nvcc, the toolkit, the architectures.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(OFSDP_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(OFSDP_NVCC)
    set(CMAKE_CUDA_COMPILER ${OFSDP_NVCC})
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
find_package(CUDAToolkit 12.4)
if(NOT CMAKE_CUDA_COMPILER OR NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR "OFSDP_CUDA=ON: expected nvcc and the CUDA toolkit, 12.4 or newer, found compiler "
    "'${CMAKE_CUDA_COMPILER}', toolkit '${CUDAToolkit_VERSION}' (nvcc must be in PATH, or CUDACXX name it)")
endif()

# Code for Ampere, Hopper and, where nvcc knows it, Blackwell; PTX of the last for what comes after.
if(NOT OFSDP_CUDA_ARCHITECTURES)
  set(OFSDP_CUDA_ARCHITECTURES "80-real;90")
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    set(OFSDP_CUDA_ARCHITECTURES "80-real;90-real;100")
  endif()
endif()
set(CMAKE_CUDA_ARCHITECTURES ${OFSDP_CUDA_ARCHITECTURES})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know it of every nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# cuDNN is used through cudnn-frontend, whose headers setup.sh brings. Without either set of headers the library is built
# without cuDNN.
find_path(OFSDP_CUDNN_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(OFSDP_CUDNN_INCLUDE)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/setup.sh --cudnn-frontend RESULT_VARIABLE failed)
  find_path(OFSDP_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/third_party/cudnn_frontend/include)
endif()
if(OFSDP_CUDNN_INCLUDE AND OFSDP_CUDNN_FRONTEND_INCLUDE)
  set(OFSDP_CUDNN_INCLUDES ${OFSDP_CUDNN_FRONTEND_INCLUDE} ${OFSDP_CUDNN_INCLUDE})
else()
  message(STATUS "libofsdp_cuda.so: without cuDNN: cudnn_graph.h '${OFSDP_CUDNN_INCLUDE}', "
    "cudnn_frontend.h '${OFSDP_CUDNN_FRONTEND_INCLUDE}'")
endif()
message(STATUS "libofsdp_cuda.so: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${OFSDP_CUDA_ARCHITECTURES}")
