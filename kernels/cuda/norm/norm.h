// Launchers for normalizations and their gradients: layer and RMS, batch, group, softmax, local
// response. Operands are float32, float16 or bfloat16 (`dtype`), arithmetic is float32.
// device/types.h has the rules for streams, scratch and errors.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- Layer and RMS normalization over rows; kernels/cpu/normalization.h has the formulas.
//
//   forward   s = x + residual[row % residual_rows] + residual_bias
//             y = (s - mean) inv scale + bias, with mean = 0 unless `centred`
//   backward  g = dy scale, h = (x - mean) inv
//             dx = inv (g - mean(g) - h mean(g h)) + addend, plus the terms of dmean and dinv
//             dscale = sum over rows of dy h, dbias = sum over rows of dy
//
// x, residual, y, sum, dx, dy, addend are [rows, width]; scale, bias and residual_bias [width];
// mean, inv, dmean and dinv float32 [rows]. y may alias x; sum may alias x or residual; dx may
// alias dy, x or addend. Any alignment; multiples of 16 bytes are fast.
//
// Mean and variance take two passes over registers. Column sums go through partials of fixed row
// blocks. The addend is added in float32 before the result is rounded. Up to width 8192 forward
// reads x once and backward reads dy, x and addend once.

struct NormForward {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, width = 0;
  float epsilon = 1e-5f;
  bool centred = true;
  const void* x = nullptr;
  const void* residual = nullptr;  // may be nullptr
  int64_t residual_rows = 0;
  const void* residual_bias = nullptr;  // may be nullptr
  const void* scale = nullptr;          // nullptr: 1
  const void* bias = nullptr;           // nullptr: 0
  void* y = nullptr;
  void* sum = nullptr;    // stores s unless nullptr
  float* mean = nullptr;  // stores it unless nullptr
  float* inv = nullptr;   // stores it unless nullptr
};
cudaError_t norm_forward(const NormForward& n, cudaStream_t stream);

struct NormBackward {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, width = 0;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;  // scale nullptr: 1
  const float *mean = nullptr, *inv = nullptr;               // mean nullptr: not centred
  const float *dmean = nullptr, *dinv = nullptr;             // nullptr: 0
  const void* addend = nullptr;                              // may be nullptr
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;   // dscale and dbias may be nullptr
  void* scratch = nullptr;                                   // norm_backward_scratch bytes
};
size_t norm_backward_scratch(int64_t rows, int64_t width);
cudaError_t norm_backward(const NormBackward& n, cudaStream_t stream);

// --- Batch normalization: statistics per channel over samples and positions;
// kernels/ops/norm/batch_normalization.cpp has the formulas.
//
// x, y, dy and dx are [samples, channels, inner], or [samples, inner, channels] if `last`. Scale,
// bias, dscale and dbias [channels] have `dtype`; running and batch statistics [channels] have
// `stats`, either `dtype` or float32. y may alias x; dx may alias dy or x.
//
// One pass over x gives mean and variance. Sums are double, over chunks of 4096 elements and then
// over chunks, in a fixed order. Training reads x twice and writes y once; the gradient reads dy
// and x twice and writes dx once.

struct ChannelNormParams {
  DType dtype = DType::kFloat32, stats = DType::kFloat32;
  int64_t samples = 0, channels = 0, inner = 1;
  bool last = false;  // channels last
};

struct ChannelNorm {
  ChannelNormParams extent;
  float epsilon = 1e-5f, momentum = 0.9f;
  bool training = false;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr;
  const void *mean = nullptr, *variance = nullptr;  // running statistics
  void* y = nullptr;
  void *running_mean = nullptr, *running_variance = nullptr;  // may be nullptr
  void *batch_mean = nullptr, *batch_variance = nullptr;      // may be nullptr
  void* scratch = nullptr;
};
struct ChannelNormGradient {
  ChannelNormParams extent;
  float epsilon = 1e-5f;
  bool training = false;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;
  const void *mean = nullptr,
             *variance = nullptr;  // batch statistics in training, else running ones
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;  // may be nullptr
  void* scratch = nullptr;
};

size_t channel_norm_scratch(const ChannelNormParams& e);  // bytes, for forward and gradient
cudaError_t channel_norm(const ChannelNorm& n, cudaStream_t stream);
cudaError_t channel_norm_grad(const ChannelNormGradient& n, cudaStream_t stream);

// Batch normalization over the rows of all ranks, in four steps around two collectives. Statistics
// and exchanged rows are float32; extents, scratch, memory traffic and the order of sums are as
// above.
//
//   channel_statistics   y [1 + 2 channels]: element count, means, sums of squared differences
//   joined_statistics    mean, variance and running statistics, in double, in rank order
//   channel_dots         sums [2 channels] of dy and dy (x - mean) inv; also as dbias, dscale
//   joined_gradient      dx from the dots of all ranks
cudaError_t channel_statistics(const ChannelNormParams& e, const void* x, float* y, void* scratch,
                               cudaStream_t stream);

struct JoinedStatistics {
  int64_t channels = 0;
  float momentum = 0.9f;
  GatheredRows rows;  // outputs of channel_statistics
  const float *running_mean = nullptr, *running_variance = nullptr;
  float *mean = nullptr, *variance = nullptr;            // may be nullptr
  float *next_mean = nullptr, *next_variance = nullptr;  // may be nullptr
};
cudaError_t joined_statistics(const JoinedStatistics& s, cudaStream_t stream);

// Ignores dx and training.
cudaError_t channel_dots(const ChannelNormGradient& n, float* sums, cudaStream_t stream);
// Ignores dscale and dbias.
cudaError_t joined_gradient(const ChannelNormGradient& n, const GatheredRows& statistics,
                            const GatheredRows& dots, cudaStream_t stream);

// --- Group normalization; with one channel per group it is instance normalization.
// kernels/ops/norm/group_normalization.cpp has the formulas.
//
// x, y, dy and dx are [batch, groups, each, inner]; scale and bias [groups * each]; mean and inv
// float32 [batch, groups]. y may alias x; dx may alias dy or x.
//
// A warp sums 2048 adjacent elements in double, a thread adds these sums in order. The variance is
// taken from differences to the row's first element. Forward reads x twice and writes y once; the
// gradient reads dy and x twice and writes dx once.

struct GroupNormParams {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, groups = 0, each = 0, inner = 1;  // each: channels per group
};

struct GroupNorm {
  GroupNormParams extent;
  float epsilon = 1e-5f;
  const void *x = nullptr, *scale = nullptr, *bias = nullptr;
  void* y = nullptr;
  float *mean = nullptr, *inv = nullptr;  // may be nullptr
  void* scratch = nullptr;
};
struct GroupNormGradient {
  GroupNormParams extent;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;
  const float *mean = nullptr, *inv = nullptr;
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;  // may be nullptr
  void* scratch = nullptr;
};

size_t group_norm_scratch(const GroupNormParams& e);  // bytes, for forward and gradient
cudaError_t group_norm(const GroupNorm& n, cudaStream_t stream);
cudaError_t group_norm_grad(const GroupNormGradient& n, cudaStream_t stream);

// --- Softmax and log-softmax along one axis; kernels/cpu/softmax.h has the formulas.
//
// Tensors are [outer, classes, inner], any alignment. y may alias x; dx may alias dy or y. With
// inner = 1, up to 8192 classes are read once, longer rows twice, the second time from the cache.
// With inner > 1 a thread handles one column.

struct SoftmaxParams {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, classes = 1, inner = 1;
  bool log = false;
};

cudaError_t softmax(const SoftmaxParams& e, const void* x, void* y, cudaStream_t stream);
cudaError_t softmax_grad(const SoftmaxParams& e, const void* dy, const void* y, void* dx,
                         cudaStream_t stream);

// --- Local response normalization over channels; kernels/ops/norm/lrn.cpp has the formulas.
//
// x, y, dy and dx are [batch, channels, inner]. A thread computes one element and reads the window
// from the cache. The gradient recomputes the window sums of each channel in the window: size^2
// reads.

struct LrnParams {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, channels = 0, inner = 1;
  int64_t before = 0, after = 0;            // channels of the window on either side
  float alpha = 0, beta = 0.75f, bias = 1;  // alpha: ONNX's alpha / size
};
cudaError_t lrn(const LrnParams& e, const void* x, void* y, cudaStream_t stream);
cudaError_t lrn_grad(const LrnParams& e, const void* dy, const void* x, void* dx,
                     cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
