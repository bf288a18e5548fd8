// Launchers of the normalizations with their gradients: of rows, channels and groups, softmax,
// local response. Views; nothing is owned. Threads: any, one a stream. Errors: those of the launch
// (kernels/cuda/device/types.h).
#pragma once

#include "kernels/cuda/device/rows_of_ranks.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- Layer and RMS normalization of rows: kernels/cpu/norm_rows.h has the formulas.
//
//   forward   s = x + residual[row % residual_rows] + residual_bias (where given), mean and inv of
//             each row of s in float32 by two passes over registers,
//             y = (s - mean) inv scale + bias; not centred: mean is 0.
//   backward  g = dy scale, h = (x - mean) inv: dx = inv (g - mean(g) - h mean(g h)) and what comes
//             through the statistics, plus addend; dscale = sum over rows of dy h, dbias of dy, by
//             partials of fixed blocks of rows. The addend meets dx in float32, where the sum is
//             that of a pass of its own; with 16 bits it is rounded once instead of twice.
//
// x, residual, y, dx, dy, addend: [rows, width]; scale, bias, residual_bias: [width]; all of
// `dtype` (float32, float16, bfloat16). mean, inv, dmean, dinv: float32 [rows]. Any alignment;
// 16-byte addresses and rows are fast. y may be x; sum may be x or residual; dx may be dy, x or
// addend. Memory: forward reads x once up to a width of 8192 (of 16-bit and 32-bit floats alike),
// backward reads dy, x and addend once.

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
  const void* addend = nullptr;                              // null: none
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;   // dscale, dbias null: not wanted
  void* scratch = nullptr;                                   // norm_backward_scratch bytes
};
size_t norm_backward_scratch(int64_t rows, int64_t width);
cudaError_t norm_backward(const NormBackward& n, cudaStream_t stream);

// --- Batch normalization: statistics per channel over samples and positions, and its gradient;
// kernels/ops/norm/batch_normalization.cpp has the formulas.
//
// x, y, dy, dx: [samples, channels, inner], or channels last, of `dtype` (float32, float16,
// bfloat16), as scale, bias and their gradients; statistics, running and of the batch, of `stats`,
// that or float32; arithmetic in float32, sums in double. Mean and variance by one pass over x.
// Sums run over chunks of 4096 elements of a channel and then over the chunks, in one order. y may
// be x; dx may be dy or x. Memory: in training x twice and y once; the gradient dy and x twice and
// dx once.

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
  void* y = nullptr;
  void *running_mean = nullptr, *running_variance = nullptr;  // null: not wanted
  void *batch_mean = nullptr, *batch_variance = nullptr;      // null: not wanted
  void* scratch = nullptr;
};
struct ChannelNormGradient {
  ChannelExtent extent;
  float epsilon = 1e-5f;
  bool training = false;
  const void *dy = nullptr, *x = nullptr, *scale = nullptr;
  const void *mean = nullptr, *variance = nullptr;          // of the batch, or the running ones
  void *dx = nullptr, *dscale = nullptr, *dbias = nullptr;  // null: not wanted
  void* scratch = nullptr;
};

size_t channel_norm_scratch(const ChannelExtent& e);  // of either
cudaError_t channel_norm(const ChannelNorm& n, cudaStream_t stream);
cudaError_t channel_norm_grad(const ChannelNormGradient& n, cudaStream_t stream);

// Batch normalization over the rows of all ranks, in parts;
// kernels/ops/norm/batch_normalization.cpp has the formulas. Statistics and joined rows are
// float32; `extent`, scratch and memory are those of the whole, and sums have its order.
//
//   channel_statistics   y [1 + 2 channels]: elements of a channel, means, sums of squares
//   joined_statistics    mean, variance, next running mean and variance, in double, rank by rank
//   channel_dots         sums [2 channels]: of dy, and of dy (x - mean) inv; each also as dbias,
//                        dscale of `dtype`
//   joined_gradient      dx, from such sums of all ranks
cudaError_t channel_statistics(const ChannelExtent& e, const void* x, float* y, void* scratch,
                               cudaStream_t stream);

struct JoinedStatistics {
  int64_t channels = 0;
  float momentum = 0.9f;
  RowsOfRanks rows;  // of channel_statistics
  const float *running_mean = nullptr, *running_variance = nullptr;
  float *mean = nullptr, *variance = nullptr;            // null: not wanted
  float *next_mean = nullptr, *next_variance = nullptr;  // null: not wanted
};
cudaError_t joined_statistics(const JoinedStatistics& s, cudaStream_t stream);

// Reads neither dx nor training.
cudaError_t channel_dots(const ChannelNormGradient& n, float* sums, cudaStream_t stream);
// Reads neither dscale nor dbias.
cudaError_t joined_gradient(const ChannelNormGradient& n, const RowsOfRanks& statistics,
                            const RowsOfRanks& dots, cudaStream_t stream);

// --- Group normalization and its gradient; a group for each channel is instance normalization.
// kernels/ops/norm/group_normalization.cpp has the formulas.
//
// x, y, dy, dx [batch, groups, each, inner], scale and bias [groups * each], of `dtype` (float32,
// float16, bfloat16); mean and inv [batch, groups] float32. Sums in double, of warps over 2048
// neighbours and then over these, in one order; the variance is that of differences from the row's
// first element. y may be x; dx may be dy or x. Memory: x twice and y once; the gradient dy and x
// twice and dx once.

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

// --- Softmax and its logarithm along one axis, and their gradients; kernels/cpu/softmax.h has the
// formulas.
//
// Tensors are [outer, classes, inner] of `dtype` (float32, float16, bfloat16), any alignment. y may
// be x; dx may be dy or y. Rows (inner 1) of up to 8192 classes are read once; longer ones twice,
// the second time from the cache. With inner > 1 a thread takes a column.

struct SoftmaxExtent {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, classes = 1, inner = 1;
  bool log = false;
};

cudaError_t softmax(const SoftmaxExtent& e, const void* x, void* y, cudaStream_t stream);
cudaError_t softmax_grad(const SoftmaxExtent& e, const void* dy, const void* y, void* dx,
                         cudaStream_t stream);

// --- Local response normalization over channels and its gradient; kernels/ops/norm/lrn.cpp has the
// formulas.
//
// x, y, dy, dx [batch, channels, inner] of float32, float16 or bfloat16, in float32; a thread an
// element. Memory: x and y once, the window's channels from the cache; the gradient makes the sums
// of a window anew for each channel in it: size^2 reads.

struct LrnExtent {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, channels = 0, inner = 1;
  int64_t before = 0, after = 0;            // channels of the window before and after one
  float alpha = 0, beta = 0.75f, bias = 1;  // alpha is divided by the size of the window
};
cudaError_t lrn(const LrnExtent& e, const void* x, void* y, cudaStream_t stream);
cudaError_t lrn_grad(const LrnExtent& e, const void* dy, const void* x, void* dx,
                     cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
