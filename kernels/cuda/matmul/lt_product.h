// How a MatrixProduct (product.h) reaches cuBLASLt: the library's functions, a product as one call,
// and the trial that chooses an algorithm.
#pragma once

#include <cublasLt.h>

#include <functional>

#include "kernels/cuda/device/libraries.h"
#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {

// The functions of cuBLASLt that products call, by their own types, and one handle per process,
// opened at the first call (device/libraries.h). `handle` is null if the library is absent.
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

// Returns a product that is one cuBLASLt call, after choosing its algorithm; nullptr if there is
// none.
std::unique_ptr<MatrixProduct> make_lt_product(DeviceState& device, const ProductShape& shape);

// Products with fewer multiplications take the first algorithm: their time is mostly launch.
inline constexpr int64_t kMinTried = int64_t{1} << 28;

// Launches candidate `i` on the legacy stream; returns false if it cannot.
using RunCandidate = std::function<bool(int i, const ProductOperands& operands)>;

// Times the algorithms that cuBLASLt's heuristic offers for a product, on random operands, and
// returns the index of the fastest; 0 if there is no memory for operands. `workspace` bytes suffice
// for every candidate.
//
// [Note: the same bits] Unless results may vary between runs, only candidates compete that give the
// same bits as the first one that runs: they add along the inner axis in the same order, with other
// tiles. So timing noise changes the choice but no result.
int fastest_candidate(const ProductShape& shape, int count, bool may_vary, size_t workspace,
                      const RunCandidate& run);

}  // namespace ofsdp::kernels::cuda
