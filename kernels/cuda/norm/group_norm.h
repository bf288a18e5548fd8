// Group normalization and its gradient; a group for each channel is instance normalization. kernels/ops/
// group_normalization.cpp has the formulas.
//
// x, y, dy, dx [batch, groups, each, inner], scale and bias [groups * each], of `dtype` (float32, float16, bfloat16); mean and
// inv [batch, groups] float32. Sums in double, of warps over 2048 neighbours and then over these, in one order; the variance is
// that of differences from the row's first element. y may be x; dx may be dy or x. Memory: x twice and y once; the
// gradient dy and x twice and dx once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct GroupExtent {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, groups = 0, each = 0, inner = 1;  // each: channels of a group
};

struct GroupNorm {
  GroupExtent extent;
  float epsilon = 1e-5f;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr;
  void* y = nullptr;
  float *mean = nullptr, *inv = nullptr;  // null: not wanted
  void* scratch = nullptr;
};
struct GroupNormGradient {
  GroupExtent extent;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;
  const float *mean = nullptr, *inv = nullptr;
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;  // null: not wanted
  void* scratch = nullptr;
};

size_t group_norm_scratch(const GroupExtent& e);  // of either
cudaError_t group_norm(const GroupNorm& n, cudaStream_t stream);
cudaError_t group_norm_grad(const GroupNormGradient& n, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
