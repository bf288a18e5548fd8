// Batch normalization: statistics per channel over samples and positions, and its gradient; kernels/ops/
// batch_normalization.cpp has the formulas.
//
// x, y, dy, dx: [samples, channels, inner], or channels last, of `dtype` (float32, float16, bfloat16), as scale, bias
// and their gradients; statistics, running and of the batch, of `stats`, that or float32; arithmetic in float32, sums in double. Mean and variance by one pass over x. Sums run over chunks of
// 4096 elements of a channel and then over the chunks, in one order. y may be x; dx may be dy or x. Memory: in training x
// twice and y once; the gradient dy and x twice and dx once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct ChannelExtent {
  DType dtype = DType::kFloat32, stats = DType::kFloat32;
  int64_t samples = 0, channels = 0, inner = 1;
  bool last = false;  // channels last
};

struct ChannelNorm {
  ChannelExtent extent;
  float epsilon = 1e-5f, momentum = 0.9f;
  bool training = false;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr;
  const void *mean = nullptr, *variance = nullptr;  // the running ones
  void *y = nullptr;
  void *running_mean = nullptr, *running_variance = nullptr;  // null: not wanted
  void *batch_mean = nullptr, *batch_variance = nullptr;      // likewise
  void *scratch = nullptr;
};
struct ChannelNormGradient {
  ChannelExtent extent;
  float epsilon = 1e-5f;
  bool training = false;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;
  const void *mean = nullptr, *variance = nullptr;          // of the batch, or the running ones
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;  // null: not wanted
  void *scratch = nullptr;
};

size_t channel_norm_scratch(const ChannelExtent &e);  // of either
cudaError_t channel_norm(const ChannelNorm &n, cudaStream_t stream);
cudaError_t channel_norm_grad(const ChannelNormGradient &n, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
