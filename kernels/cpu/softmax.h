// Softmax and its logarithm along one axis of a plain float32 tensor, and their gradients.
//
// The tensor is [outer, classes, inner]. Rows (inner 1) are vectorised along the classes, in 16
// partial sums added in a fixed order; otherwise the columns of `inner` are, in blocks. dst may be
// src; diff_src may be diff_dst or dst.
//
//   softmax           dst = e^(src - max) / sum
//   log_softmax       dst = (src - max) - ln(sum)
//   softmax_grad      diff_src = dst (diff_dst - sum(diff_dst dst))
//   log_softmax_grad  diff_src = diff_dst - e^dst sum(diff_dst)
//
// Threads: they fan out over the pool by rows and blocks of columns, which changes no bits.
#pragma once

#include "kernels/core/shape.h"

namespace ofsdp::kernels {

struct SoftmaxExtent {
  int64_t outer = 1;
  int64_t classes = 1;
  int64_t inner = 1;
};

SoftmaxExtent softmax_extent(const Shape& shape, int axis);  // axis is normalised

void softmax(const SoftmaxExtent& e, const float* src, float* dst);
void log_softmax(const SoftmaxExtent& e, const float* src, float* dst);
void softmax_grad(const SoftmaxExtent& e, const float* diff_dst, const float* dst, float* diff_src);
void log_softmax_grad(const SoftmaxExtent& e, const float* diff_dst, const float* dst,
                      float* diff_src);

}  // namespace ofsdp::kernels
