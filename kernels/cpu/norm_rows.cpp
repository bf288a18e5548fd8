#include "kernels/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kMostBlocks = 16;
constexpr int64_t kBlockRows = 32;  // at least

template <typename T>
struct Row {
  const T *dy, *x, *scale, *bias;
  T *y, *dscale, *dbias;
  int64_t n;
};

// The functions below exist for float in several instruction sets and for double in one.

template <typename T>
[[gnu::always_inline]] inline T mean_as(const T* x, int64_t n) {
  return lane_sum(n, [x](int64_t i) { return x[i]; }) / static_cast<T>(n);
}

template <typename T>
[[gnu::always_inline]] inline T variance_as(const T* x, T mean, int64_t n) {
  return lane_sum(n, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / static_cast<T>(n);
}

template <typename T>
[[gnu::always_inline]] inline void write_as(const Row<T>& r, T mean, T inv) {
  const auto [dy, x, scale, bias, y, dscale, dbias, n] = r;
  if (scale == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv;
  } else if (bias == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv * scale[i];
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv * scale[i] + bias[i];
  }
}

// Means of g and of g h.
template <typename T>
struct Means {
  T g, gh;
};

template <typename T>
[[gnu::always_inline]] inline Means<T> means_as(const Row<T>& r, T mean, T inv) {
  const auto [dy, x, scale, bias, y, dscale, dbias, n] = r;
  const T count = static_cast<T>(n);
  if (scale == nullptr) {
    return {lane_sum(n, [=](int64_t i) { return dy[i]; }) / count,
            lane_sum(n, [=](int64_t i) { return dy[i] * ((x[i] - mean) * inv); }) / count};
  }
  return {lane_sum(n, [=](int64_t i) { return dy[i] * scale[i]; }) / count,
          lane_sum(n, [=](int64_t i) { return dy[i] * scale[i] * ((x[i] - mean) * inv); }) / count};
}

template <typename T>
[[gnu::always_inline]] inline void backward_as(const Row<T>& r, T mean, T inv, Means<T> m) {
  const auto [dy, x, scale, bias, y, dscale, dbias, n] = r;
  if (dscale != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const T d = dy[i];
      const T h = (x[i] - mean) * inv;
      dscale[i] += d * h;
      dbias[i] += d;
      y[i] = inv * (d * scale[i] - m.g - h * m.gh);
    }
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T h = (x[i] - mean) * inv;
    y[i] = inv * (dy[i] * (scale == nullptr ? T{1} : scale[i]) - m.g - h * m.gh);
  }
}

OFSDP_MULTIARCH float row_mean(const float* x, int64_t n) { return mean_as(x, n); }
double row_mean(const double* x, int64_t n) { return mean_as(x, n); }
OFSDP_MULTIARCH float row_variance(const float* x, float mean, int64_t n) {
  return variance_as(x, mean, n);
}
double row_variance(const double* x, double mean, int64_t n) { return variance_as(x, mean, n); }
OFSDP_MULTIARCH void row_write(const Row<float>& r, float mean, float inv) {
  write_as(r, mean, inv);
}
void row_write(const Row<double>& r, double mean, double inv) { write_as(r, mean, inv); }
OFSDP_MULTIARCH Means<float> row_means(const Row<float>& r, float mean, float inv) {
  return means_as(r, mean, inv);
}
Means<double> row_means(const Row<double>& r, double mean, double inv) {
  return means_as(r, mean, inv);
}
OFSDP_MULTIARCH void row_backward(const Row<float>& r, float mean, float inv, Means<float> m) {
  backward_as(r, mean, inv, m);
}
void row_backward(const Row<double>& r, double mean, double inv, Means<double> m) {
  backward_as(r, mean, inv, m);
}

template <typename T>
const T* moved(const T* base, int64_t offset) {
  return base == nullptr ? nullptr : base + offset;
}

template <typename T>
void backward_of_row(const NormRows& n, const NormBackward<T>& b, int64_t row, T* dscale,
                     T* dbias) {
  const T mean = b.mean == nullptr ? T{0} : static_cast<T>(b.mean[row]);
  const T inv = static_cast<T>(b.inv[row]);
  const int64_t at = row * n.width;
  const Row<T> r{b.dy + at, b.x + at,  moved(b.scale, row * n.scale_step),
                 nullptr,   b.dx + at, dscale,
                 dbias,     n.width};
  Means<T> m = row_means(r, mean, inv);
  const T count = static_cast<T>(n.width);
  if (b.mean == nullptr) m.g = 0;
  if (b.dmean != nullptr) m.g -= static_cast<T>(b.dmean[row]) / (count * inv);
  if (b.dinv != nullptr) m.gh += static_cast<T>(b.dinv[row]) * inv / count;
  row_backward(r, mean, inv, m);
}

// partial[block] becomes dscale and dbias, in the order of the blocks.
template <typename T>
void add_partials(const NormRows& n, const NormBackward<T>& b, int64_t blocks) {
  for (T* target : {b.dscale, b.dbias}) {
    if (target == nullptr) continue;
    const T* from = b.partial + (target == b.dscale ? 0 : n.width);
    std::fill_n(target, n.width, T{0});
    for (int64_t block = 0; block < blocks; ++block) {
      const T* part = from + block * 2 * n.width;
      for (int64_t i = 0; i < n.width; ++i) target[i] += part[i];
    }
  }
}

}  // namespace

int64_t norm_partial_count(const NormRows& n) {
  return std::min(kMostBlocks, (n.rows + kBlockRows - 1) / kBlockRows);
}

// Of rows without elements: mean and variance are 0.
template <typename T>
void empty_rows(const NormRows& n, const NormForward<T>& f) {
  const auto inv = static_cast<float>(T{1} / std::sqrt(static_cast<T>(n.epsilon)));
  if (f.mean != nullptr) std::fill_n(f.mean, n.rows, 0.0f);
  if (f.inv != nullptr) std::fill_n(f.inv, n.rows, inv);
}

template <typename T>
void norm_rows(const NormRows& n, const NormForward<T>& f) {
  if (n.width == 0) return empty_rows(n, f);
  parallel_for(n.rows, kGrain / n.width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = f.x + row * n.width;
      const T mean = n.centred ? row_mean(x, n.width) : T{0};
      const T inv = T{1} / std::sqrt(row_variance(x, mean, n.width) + static_cast<T>(n.epsilon));
      row_write({nullptr, x, moved(f.scale, row * n.scale_step), moved(f.bias, row * n.bias_step),
                 f.y + row * n.width, nullptr, nullptr, n.width},
                mean, inv);
      if (f.mean != nullptr) f.mean[row] = static_cast<float>(mean);
      if (f.inv != nullptr) f.inv[row] = static_cast<float>(inv);
    }
  });
}

template <typename T>
void norm_rows_grad(const NormRows& n, const NormBackward<T>& b) {
  if (n.width == 0) return;
  const int64_t blocks = norm_partial_count(n);
  const bool sums = b.dscale != nullptr;
  parallel_for(blocks, kGrain * blocks / (n.rows * n.width + 1) + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   T* dscale = sums ? b.partial + block * 2 * n.width : nullptr;
                   if (sums) std::fill_n(dscale, 2 * n.width, T{0});
                   const int64_t last = n.rows * (block + 1) / blocks;
                   for (int64_t row = n.rows * block / blocks; row < last; ++row) {
                     backward_of_row(n, b, row, dscale, sums ? dscale + n.width : nullptr);
                   }
                 }
               });
  if (sums) add_partials(n, b, blocks);
}

template void norm_rows(const NormRows&, const NormForward<float>&);
template void norm_rows(const NormRows&, const NormForward<double>&);
template void norm_rows_grad(const NormRows&, const NormBackward<float>&);
template void norm_rows_grad(const NormRows&, const NormBackward<double>&);

}  // namespace ofsdp
