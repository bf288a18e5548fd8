// Layer and RMS normalization of rows: kernels/cpu/norm_rows.h has the formulas.
//
//   forward   s = x + residual[row % residual_rows] + residual_bias (where given), mean and inv of each row of s in
//             float32 by two passes over registers, y = (s - mean) inv scale + bias; not centred: mean is 0.
//   backward  g = dy scale, h = (x - mean) inv: dx = inv (g - mean(g) - h mean(g h)) and what comes through the
//             statistics; dscale = sum over rows of dy h, dbias of dy, by partials of fixed blocks of rows.
//
// x, residual, y, dx, dy: [rows, width]; scale, bias, residual_bias: [width]; all of `dtype` (float32, float16,
// bfloat16). mean, inv, dmean, dinv: float32 [rows]. Any alignment; 16-byte addresses and rows are fast. y may be x; sum
// may be x or residual; dx may be dy or x. Memory: forward reads x once up to a width of 8192 (of 16-bit and 32-bit
// floats alike), backward reads dy and x once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct NormForward {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, width = 0;
  float epsilon = 1e-5f;
  bool centred = true;
  const void* x = nullptr;
  const void* residual = nullptr;  // null: none
  int64_t residual_rows = 0;
  const void* residual_bias = nullptr;  // null: none
  const void* scale = nullptr;          // null: 1
  const void* bias = nullptr;           // null: 0
  void* y = nullptr;
  void* sum = nullptr;    // s; null: not wanted
  float* mean = nullptr;  // null: not wanted
  float* inv = nullptr;   // null: not wanted
};
cudaError_t norm_forward(const NormForward& n, cudaStream_t stream);

struct NormBackward {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, width = 0;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;  // scale null: 1
  const float *mean = nullptr, *inv = nullptr;               // mean null: not centred
  const float *dmean = nullptr, *dinv = nullptr;             // null: none
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;   // dscale, dbias null: not wanted
  void* scratch = nullptr;                                   // norm_backward_scratch bytes
};
size_t norm_backward_scratch(int64_t rows, int64_t width);
cudaError_t norm_backward(const NormBackward& n, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
