#include "kernels/cpu/softmax.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kSoftmaxGrain = 4096;   // elements worth a thread; each costs an exponential
constexpr int64_t kSoftmaxColumns = 128;  // columns that share a loop over the classes

template <typename A>
[[gnu::always_inline]] inline void softmax_row_by(const float* src, float* dst, int64_t n) {
  const float max = lane_max(src, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dst[i] = vector_exp_flushed<A>(src[i] - max);
  const float scale = 1.0f / lane_sum(n, [&](int64_t i) { return dst[i]; });
  for (int64_t i = 0; i < n; ++i) dst[i] *= scale;
}
const auto softmax_row =
    fastest_version<softmax_row_by<SeparateMultiplyAdd>, softmax_row_by<FusedMultiplyAdd>>();

template <typename A>
[[gnu::always_inline]] inline void log_softmax_row_by(const float* src, float* dst, int64_t n) {
  const float max = lane_max(src, n);
  const float log =
      std::log(lane_sum(n, [&](int64_t i) { return vector_exp_flushed<A>(src[i] - max); }));
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dst[i] = (src[i] - max) - log;
}
const auto log_softmax_row = fastest_version<log_softmax_row_by<SeparateMultiplyAdd>,
                                             log_softmax_row_by<FusedMultiplyAdd>>();

template <bool logarithm, typename A>
[[gnu::always_inline]] inline void grad_row_by(const float* dy, const float* y, float* dx,
                                               int64_t n) {
  const float sum = lane_sum(n, [&](int64_t i) { return logarithm ? dy[i] : dy[i] * y[i]; });
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = logarithm ? dy[i] - vector_exp_flushed<A>(y[i]) * sum : y[i] * (dy[i] - sum);
  }
}
template <bool logarithm>
const auto grad_row = fastest_version<grad_row_by<logarithm, SeparateMultiplyAdd>,
                                      grad_row_by<logarithm, FusedMultiplyAdd>>();

// The same for `n` neighbouring columns, n <= kSoftmaxColumns; classes are `step` apart.
[[gnu::always_inline]] inline void column_max(const float* src, int64_t classes, int64_t step,
                                              int64_t n, float* max) {
  for (int64_t i = 0; i < n; ++i) max[i] = src[i];
  for (int64_t c = 1; c < classes; ++c) {
    const float* x = src + c * step;
    for (int64_t i = 0; i < n; ++i) max[i] = x[i] > max[i] ? x[i] : max[i];
  }
}

template <typename A>
[[gnu::always_inline]] inline void softmax_columns_by(const float* src, float* dst, int64_t classes,
                                                      int64_t step, int64_t n) {
  float max[kSoftmaxColumns];
  float sum[kSoftmaxColumns] = {};
  column_max(src, classes, step, n, max);
  for (int64_t c = 0; c < classes; ++c) {
    const float* x = src + c * step;
    float* y = dst + c * step;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = vector_exp_flushed<A>(x[i] - max[i]);
    for (int64_t i = 0; i < n; ++i) sum[i] += y[i];
  }
  for (int64_t i = 0; i < n; ++i) sum[i] = 1.0f / sum[i];
  for (int64_t c = 0; c < classes; ++c) {
    for (int64_t i = 0; i < n; ++i) dst[c * step + i] *= sum[i];
  }
}
const auto softmax_columns = fastest_version<softmax_columns_by<SeparateMultiplyAdd>,
                                             softmax_columns_by<FusedMultiplyAdd>>();

template <typename A>
[[gnu::always_inline]] inline void log_softmax_columns_by(const float* src, float* dst,
                                                          int64_t classes, int64_t step,
                                                          int64_t n) {
  float max[kSoftmaxColumns];
  float sum[kSoftmaxColumns] = {};
  column_max(src, classes, step, n, max);
  for (int64_t c = 0; c < classes; ++c) {
    const float* x = src + c * step;
    for (int64_t i = 0; i < n; ++i) sum[i] += vector_exp_flushed<A>(x[i] - max[i]);
  }
  for (int64_t i = 0; i < n; ++i) sum[i] = std::log(sum[i]);
  for (int64_t c = 0; c < classes; ++c) {
    const float* x = src + c * step;
    float* y = dst + c * step;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - max[i]) - sum[i];
  }
}
const auto log_softmax_columns = fastest_version<log_softmax_columns_by<SeparateMultiplyAdd>,
                                                 log_softmax_columns_by<FusedMultiplyAdd>>();

template <bool logarithm, typename A>
[[gnu::always_inline]] inline void grad_columns_by(const float* dy, const float* y, float* dx,
                                                   int64_t classes, int64_t step, int64_t n) {
  float sum[kSoftmaxColumns] = {};
  for (int64_t at = 0; at < classes * step; at += step) {
    for (int64_t i = 0; i < n; ++i) sum[i] += logarithm ? dy[at + i] : dy[at + i] * y[at + i];
  }
  for (int64_t at = 0; at < classes * step; at += step) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const float d = dy[at + i], v = y[at + i];
      dx[at + i] = logarithm ? d - vector_exp_flushed<A>(v) * sum[i] : v * (d - sum[i]);
    }
  }
}
template <bool logarithm>
const auto grad_columns = fastest_version<grad_columns_by<logarithm, SeparateMultiplyAdd>,
                                          grad_columns_by<logarithm, FusedMultiplyAdd>>();

// Calls row(offset) for every row, or columns(offset, count) for every column block.
template <typename Row, typename Columns>
void walk(const SoftmaxParams& e, const Row& row, const Columns& columns) {
  if (e.classes == 0) return;
  if (e.inner == 1) {
    parallel_each(e.outer, kSoftmaxGrain / e.classes + 1, [&](int64_t o) { row(o * e.classes); });
    return;
  }
  const int64_t blocks = (e.inner + kSoftmaxColumns - 1) / kSoftmaxColumns;
  const int64_t width = std::min(e.inner, kSoftmaxColumns);
  parallel_each(e.outer * blocks, kSoftmaxGrain / (e.classes * width + 1) + 1, [&](int64_t item) {
    const int64_t first = item % blocks * kSoftmaxColumns;
    columns(item / blocks * e.classes * e.inner + first,
            std::min(kSoftmaxColumns, e.inner - first));
  });
}

template <bool logarithm>
void walk_grad(const SoftmaxParams& e, const float* dy, const float* y, float* dx) {
  walk(
      e, [&](int64_t at) { grad_row<logarithm>(dy + at, y + at, dx + at, e.classes); },
      [&](int64_t at, int64_t n) {
        grad_columns<logarithm>(dy + at, y + at, dx + at, e.classes, e.inner, n);
      });
}

}  // namespace

SoftmaxParams softmax_extent(const Shape& shape, int axis) {
  return {shape.numel(0, axis), shape[axis], shape.numel(axis + 1, shape.rank())};
}

void softmax(const SoftmaxParams& e, const float* src, float* dst) {
  walk(
      e, [&](int64_t at) { softmax_row(src + at, dst + at, e.classes); },
      [&](int64_t at, int64_t n) { softmax_columns(src + at, dst + at, e.classes, e.inner, n); });
}

void log_softmax(const SoftmaxParams& e, const float* src, float* dst) {
  walk(
      e, [&](int64_t at) { log_softmax_row(src + at, dst + at, e.classes); },
      [&](int64_t at, int64_t n) {
        log_softmax_columns(src + at, dst + at, e.classes, e.inner, n);
      });
}

void softmax_grad(const SoftmaxParams& e, const float* diff_dst, const float* dst,
                  float* diff_src) {
  walk_grad<false>(e, diff_dst, dst, diff_src);
}

void log_softmax_grad(const SoftmaxParams& e, const float* diff_dst, const float* dst,
                      float* diff_src) {
  walk_grad<true>(e, diff_dst, dst, diff_src);
}

}  // namespace ofsdp::kernels
