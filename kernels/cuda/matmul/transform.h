// DFT, Det and its gradient. Arithmetic is double, operands are float32.
#pragma once

#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- DFT of lines: x [outer, in, inner, x_parts], y [outer, out, inner, y_parts].
// kernels/ops/matmul/dft_extent.h has the names. A pass per factor of n, a thread an element, on as
// many lines at a time as kDftElements allow: two buffers of 16 bytes an element are the scratch.
struct DftParams {
  int64_t outer = 1, in = 0, inner = 1, x_parts = 1;
  int64_t n = 0, out = 0, y_parts = 2, used = 0;
  bool inverse = false, mirrors = false;  // mirrors: the second half of x is conjugate to the first

  int64_t lines() const { return outer * inner; }
};
struct DftStage {
  int64_t radix, before, after;  // [Note: Stockham passes]
};
size_t dft_scratch(const DftParams& e);
cudaError_t dft(const DftParams& e, const std::vector<DftStage>& stages, const float* x, float* y,
                void* scratch, cudaStream_t stream);

// --- Determinants of x [count, n, n], and dx = dy times the cofactors. A thread a matrix.
size_t determinant_scratch(int64_t n, int64_t count);
cudaError_t determinant(int64_t n, int64_t count, const float* x, float* y, void* scratch,
                        cudaStream_t stream);
cudaError_t determinant_grad(int64_t n, int64_t count, const float* dy, const float* x, float* dx,
                             void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
