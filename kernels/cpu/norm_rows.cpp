#include "kernels/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kMaxBlocks = 16;
constexpr int64_t kBlockRows = 32;  // at least

template <typename T>
struct Row {
  const T *dy, *x, *scale, *bias;
  T* y;
  RealOf<T>*dscale, *dbias;
  int64_t n;
  const T* addend = nullptr;
};

template <typename T, typename Real = RealOf<T>>
OFSDP_MULTIARCH Real row_mean(const T* x, int64_t n) {
  return lane_sum(n, [x](int64_t i) { return as_real(x[i]); }) / static_cast<Real>(n);
}

template <typename T, typename Real = RealOf<T>>
OFSDP_MULTIARCH Real row_variance(const T* x, Real mean, int64_t n) {
  const auto square = [=](int64_t i) {
    const Real d = as_real(x[i]) - mean;
    return d * d;
  };
  return lane_sum(n, square) / static_cast<Real>(n);
}

template <typename T, typename Real = RealOf<T>>
OFSDP_MULTIARCH void row_write(const Row<T>& r, Real mean, Real inv) {
  const auto [dy, x, scale, bias, y, dscale, dbias, n, addend] = r;
  if (scale == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = stored<T>((as_real(x[i]) - mean) * inv);
  } else if (bias == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      y[i] = stored<T>((as_real(x[i]) - mean) * inv * as_real(scale[i]));
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      y[i] = stored<T>((as_real(x[i]) - mean) * inv * as_real(scale[i]) + as_real(bias[i]));
    }
  }
}

// Means of g and of g h.
template <typename Real>
struct Means {
  Real g, gh;
};

template <typename T, typename Real = RealOf<T>>
OFSDP_MULTIARCH Means<Real> row_means(const Row<T>& r, Real mean, Real inv) {
  const auto [dy, x, scale, bias, y, dscale, dbias, n, addend] = r;
  const auto count = static_cast<Real>(n);
  const auto h = [=](int64_t i) { return (as_real(x[i]) - mean) * inv; };
  if (scale == nullptr) {
    return {lane_sum(n, [=](int64_t i) { return as_real(dy[i]); }) / count,
            lane_sum(n, [=](int64_t i) { return as_real(dy[i]) * h(i); }) / count};
  }
  const auto g = [=](int64_t i) { return as_real(dy[i]) * as_real(scale[i]); };
  return {lane_sum(n, g) / count, lane_sum(n, [=](int64_t i) { return g(i) * h(i); }) / count};
}

template <bool kAdds, typename T, typename Real = RealOf<T>>
OFSDP_MULTIARCH void row_backward(const Row<T>& r, Real mean, Real inv, Means<Real> m) {
  const auto [dy, x, scale, bias, y, dscale, dbias, n, addend] = r;
  const auto result = [addend = addend](int64_t i, Real dx) {
    const T rounded = stored<T>(dx);
    if constexpr (kAdds) {
      return stored<T>(as_real(rounded) + as_real(addend[i]));
    } else {
      return rounded;
    }
  };
  if (dscale != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const Real d = as_real(dy[i]);
      const Real h = (as_real(x[i]) - mean) * inv;
      dscale[i] += d * h;
      dbias[i] += d;
      y[i] = result(i, inv * (d * as_real(scale[i]) - m.g - h * m.gh));
    }
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const Real h = (as_real(x[i]) - mean) * inv;
    const Real factor = scale == nullptr ? Real{1} : as_real(scale[i]);
    y[i] = result(i, inv * (as_real(dy[i]) * factor - m.g - h * m.gh));
  }
}

template <typename T>
const T* moved(const T* base, int64_t offset) {
  return base == nullptr ? nullptr : base + offset;
}

template <typename T>
void backward_of_row(const NormRows& n, const NormBackward<T>& b, int64_t row, RealOf<T>* dscale,
                     RealOf<T>* dbias) {
  using Real = RealOf<T>;
  const Real mean = b.mean == nullptr ? Real{0} : static_cast<Real>(b.mean[row]);
  const Real inv = static_cast<Real>(b.inv[row]);
  const int64_t at = row * n.width;
  const Row<T> r{b.dy + at, b.x + at,  moved(b.scale, row * n.scale_step),
                 nullptr,   b.dx + at, dscale,
                 dbias,     n.width,   moved(b.addend, at)};
  Means<Real> m = row_means(r, mean, inv);
  const auto count = static_cast<Real>(n.width);
  if (b.mean == nullptr) m.g = 0;
  if (b.dmean != nullptr) m.g -= static_cast<Real>(b.dmean[row]) / (count * inv);
  if (b.dinv != nullptr) m.gh += static_cast<Real>(b.dinv[row]) * inv / count;
  b.addend == nullptr ? row_backward<false>(r, mean, inv, m) : row_backward<true>(r, mean, inv, m);
}

// partial[block] becomes dscale and dbias, in the order of the blocks.
template <typename T>
void add_partials(const NormRows& n, const NormBackward<T>& b, int64_t blocks) {
  for (T* target : {b.dscale, b.dbias}) {
    if (target == nullptr) continue;
    const RealOf<T>* from = b.partial + (target == b.dscale ? 0 : n.width);
    for (int64_t i = 0; i < n.width; ++i) {
      RealOf<T> sum = 0;
      for (int64_t block = 0; block < blocks; ++block) sum += from[block * 2 * n.width + i];
      target[i] = stored<T>(sum);
    }
  }
}

}  // namespace

int64_t norm_partial_count(const NormRows& n) {
  return std::min(kMaxBlocks, (n.rows + kBlockRows - 1) / kBlockRows);
}

// Rows without elements: mean and variance are 0.
template <typename T>
void empty_rows(const NormRows& n, const NormForward<T>& f) {
  const auto inv = static_cast<float>(RealOf<T>{1} / std::sqrt(static_cast<RealOf<T>>(n.epsilon)));
  if (f.mean != nullptr) std::fill_n(f.mean, n.rows, 0.0f);
  if (f.inv != nullptr) std::fill_n(f.inv, n.rows, inv);
}

template <typename T>
void norm_rows(const NormRows& n, const NormForward<T>& f) {
  using Real = RealOf<T>;
  if (n.width == 0) return empty_rows(n, f);
  parallel_each(n.rows, kElementGrain / n.width + 1, [&](int64_t row) {
    const T* x = f.x + row * n.width;
    const Real mean = n.centred ? row_mean(x, n.width) : Real{0};
    const Real variance = row_variance(x, mean, n.width);
    const Real inv = Real{1} / std::sqrt(variance + static_cast<Real>(n.epsilon));
    row_write<T>({nullptr, x, moved(f.scale, row * n.scale_step), moved(f.bias, row * n.bias_step),
                  f.y + row * n.width, nullptr, nullptr, n.width},
                 mean, inv);
    if (f.mean != nullptr) f.mean[row] = static_cast<float>(mean);
    if (f.inv != nullptr) f.inv[row] = static_cast<float>(inv);
  });
}

template <typename T>
void norm_rows_grad(const NormRows& n, const NormBackward<T>& b) {
  using Real = RealOf<T>;
  if (n.width == 0) return;
  const int64_t blocks = norm_partial_count(n);
  const bool sums = b.dscale != nullptr;
  parallel_each(blocks, kElementGrain * blocks / (n.rows * n.width + 1) + 1, [&](int64_t block) {
    Real* dscale = sums ? b.partial + block * 2 * n.width : nullptr;
    if (sums) std::fill_n(dscale, 2 * n.width, Real{0});
    const int64_t last = n.rows * (block + 1) / blocks;
    for (int64_t row = n.rows * block / blocks; row < last; ++row) {
      backward_of_row(n, b, row, dscale, sums ? dscale + n.width : nullptr);
    }
  });
  if (sums) add_partials(n, b, blocks);
}

template void norm_rows(const NormRows&, const NormForward<float>&);
template void norm_rows(const NormRows&, const NormForward<double>&);
template void norm_rows(const NormRows&, const NormForward<BFloat16>&);
template void norm_rows(const NormRows&, const NormForward<Half>&);
template void norm_rows_grad(const NormRows&, const NormBackward<float>&);
template void norm_rows_grad(const NormRows&, const NormBackward<double>&);
template void norm_rows_grad(const NormRows&, const NormBackward<BFloat16>&);
template void norm_rows_grad(const NormRows&, const NormBackward<Half>&);

}  // namespace ofsdp::kernels
