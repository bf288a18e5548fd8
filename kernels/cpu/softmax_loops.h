// kernels/cpu/softmax.h for float64, by plain loops; aliasing as there. Threads: the caller's.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/softmax.h"

namespace ofsdp::kernels {

// f(first): element first + k * e.inner for each class k is one distribution.
void for_distributions(const SoftmaxExtent& e, const auto& f) {
  for (int64_t o = 0; o < e.outer; ++o) {
    for (int64_t i = 0; i < e.inner; ++i) f(o * e.classes * e.inner + i);
  }
}

inline double log_sum_exp(const SoftmaxExtent& e, const double* x, double* max) {
  double sum = 0;
  *max = -std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < e.classes; ++k) *max = std::max(*max, x[k * e.inner]);
  for (int64_t k = 0; k < e.classes; ++k) sum += std::exp(x[k * e.inner] - *max);
  return std::log(sum);
}

inline void log_softmax_loops(const SoftmaxExtent& e, const double* src, double* dst) {
  for_distributions(e, [&](int64_t first) {
    double max = 0;
    const double log = log_sum_exp(e, src + first, &max);
    for (int64_t k = 0; k < e.classes; ++k) {
      dst[first + k * e.inner] = src[first + k * e.inner] - max - log;
    }
  });
}

inline void softmax_loops(const SoftmaxExtent& e, const double* src, double* dst) {
  log_softmax_loops(e, src, dst);
  const int64_t n = e.outer * e.classes * e.inner;
  for (int64_t i = 0; i < n; ++i) dst[i] = std::exp(dst[i]);
}

template <bool logarithm>
void softmax_grad_loops(const SoftmaxExtent& e, const double* dy, const double* y, double* dx) {
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
