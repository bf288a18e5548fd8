// The functions of cuBLASLt that products use, by their own types, and its handle.
//
// Ownership: opened once a process (libraries.h). Threads: any, after the first call. Errors:
// `handle` is null where the library is absent.
#pragma once

#include <cublasLt.h>

#include "kernels/cuda/device/libraries.h"

namespace ofsdp::kernels::cuda {

struct LtLibrary {
#define OFSDP_LT(name) \
  decltype(&name) name##_ = function_of<decltype(name)>(Nvidia::kCublasLt, #name)
  OFSDP_LT(cublasLtCreate);
  OFSDP_LT(cublasLtMatmul);
  OFSDP_LT(cublasLtMatmulAlgoGetHeuristic);
  OFSDP_LT(cublasLtMatmulDescCreate);
  OFSDP_LT(cublasLtMatmulDescDestroy);
  OFSDP_LT(cublasLtMatmulDescSetAttribute);
  OFSDP_LT(cublasLtMatmulPreferenceCreate);
  OFSDP_LT(cublasLtMatmulPreferenceDestroy);
  OFSDP_LT(cublasLtMatmulPreferenceSetAttribute);
  OFSDP_LT(cublasLtMatrixLayoutCreate);
  OFSDP_LT(cublasLtMatrixLayoutDestroy);
  OFSDP_LT(cublasLtMatrixLayoutSetAttribute);
#undef OFSDP_LT
  cublasLtHandle_t handle = nullptr;

  LtLibrary() {
    if (cublasLtCreate_ != nullptr && cublasLtCreate_(&handle) != CUBLAS_STATUS_SUCCESS) {
      handle = nullptr;
    }
  }
};

inline const LtLibrary& lt() {
  static const LtLibrary library;
  return library;
}

}  // namespace ofsdp::kernels::cuda
