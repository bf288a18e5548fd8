// Rotary position embedding: pairs (a, b) of the first `dim` elements of a row are rotated by the
// angle of the row's position, a' = a cos - b sin, b' = a sin + b cos;
// kernels/ops/attention/rotary_embedding.cpp has the meaning of every member. The gradient is the
// same with -sin.
//
// x, y: [rows, width] of `dtype` (float32, float16, bfloat16; arithmetic in float32), rows of
// [batch, heads, steps] or, packed, of [batch, steps, heads]; cos, sin: [cache rows, dim / 2] of
// `dtype`. y may be x. Memory: x and y once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct RotaryExtent {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, steps = 0, width = 0, dim = 0;
  bool packed = false, interleaved = false;
  int64_t cache_rows = 0;
  const int64_t* positions = nullptr;  // device memory; null: row b * steps + s of the caches
  int64_t count = 0;                   // of positions: batch * steps, or 1, an offset
  Fault fault = {};                    // of a position without a row of the caches
};
cudaError_t rotate(const RotaryExtent& e, const void* x, const void* cos, const void* sin, void* y,
                   cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
