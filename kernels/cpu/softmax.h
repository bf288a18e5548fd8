// Softmax and log-softmax along one axis of a plain float32 tensor, and their gradients.
//
// The tensor is [outer, classes, inner]. If inner is 1, classes are vectorised, in 16 partial sums
// added in a fixed order; otherwise columns along `inner`, in blocks. dst may be src; diff_src may
// be diff_dst or dst.
//
//   softmax           dst = e^(src - max) / sum
//   log_softmax       dst = (src - max) - ln(sum)
//   softmax_grad      diff_src = dst (diff_dst - sum(diff_dst dst))
//   log_softmax_grad  diff_src = diff_dst - e^dst sum(diff_dst)
//
// The functions fan out over the pool by rows and column blocks, which changes no bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

struct SoftmaxParams {
  int64_t outer = 1;
  int64_t classes = 1;
  int64_t inner = 1;
};

SoftmaxParams softmax_extent(const Shape& shape, int axis);  // REQUIRES: 0 <= axis < rank

void softmax(const SoftmaxParams& e, const float* src, float* dst);
void log_softmax(const SoftmaxParams& e, const float* src, float* dst);
void softmax_grad(const SoftmaxParams& e, const float* diff_dst, const float* dst, float* diff_src);
void log_softmax_grad(const SoftmaxParams& e, const float* diff_dst, const float* dst,
                      float* diff_src);

// The same for float64, by plain loops on the calling thread.

// Calls f(first) for each distribution: elements first + k * e.inner for class k.
void for_distributions(const SoftmaxParams& e, const auto& f) {
  for (int64_t o = 0; o < e.outer; ++o) {
    for (int64_t i = 0; i < e.inner; ++i) f(o * e.classes * e.inner + i);
  }
}

inline double log_sum_exp(const SoftmaxParams& e, const double* x, double* max) {
  double sum = 0;
  *max = -std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < e.classes; ++k) *max = std::max(*max, x[k * e.inner]);
  for (int64_t k = 0; k < e.classes; ++k) sum += std::exp(x[k * e.inner] - *max);
  return std::log(sum);
}

inline void log_softmax_loops(const SoftmaxParams& e, const double* src, double* dst) {
  for_distributions(e, [&](int64_t first) {
    double max = 0;
    const double log = log_sum_exp(e, src + first, &max);
    for (int64_t k = 0; k < e.classes; ++k) {
      dst[first + k * e.inner] = src[first + k * e.inner] - max - log;
    }
  });
}

inline void softmax_loops(const SoftmaxParams& e, const double* src, double* dst) {
  log_softmax_loops(e, src, dst);
  const int64_t n = e.outer * e.classes * e.inner;
  for (int64_t i = 0; i < n; ++i) dst[i] = std::exp(dst[i]);
}

template <bool logarithm>
void softmax_grad_loops(const SoftmaxParams& e, const double* dy, const double* y, double* dx) {
  for_distributions(e, [&](int64_t first) {
    const int64_t end = first + e.classes * e.inner;
    double sum = 0;
    for (int64_t at = first; at < end; at += e.inner) sum += logarithm ? dy[at] : dy[at] * y[at];
    for (int64_t at = first; at < end; at += e.inner) {
      dx[at] = logarithm ? dy[at] - std::exp(y[at]) * sum : y[at] * (dy[at] - sum);
    }
  });
}

}  // namespace ofsdp::kernels
