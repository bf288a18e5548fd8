#include "kernels/cpu/normalization.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

namespace {

constexpr int64_t kPartRows = 64;  // least rows in a partial sum if channels come last
constexpr int64_t kMaxParts = 128;

// Channels last: `rows` rows with `c` channels; blocks of at most kColumns at a time.
constexpr int64_t kColumns = 256;

template <typename T>
OFSDP_MULTIARCH void column_stats(const T* x, int64_t rows, int64_t step, int64_t c,
                                  RealOf<T>* mean, RealOf<T>* squares) {
  for (int64_t i = 0; i < c; ++i) mean[i] = squares[i] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < c; ++i) mean[i] += as_real(x[r * step + i]);
  }
  for (int64_t i = 0; i < c; ++i) mean[i] /= static_cast<RealOf<T>>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < c; ++i) {
      const RealOf<T> d = as_real(x[r * step + i]) - mean[i];
      squares[i] += d * d;
    }
  }
}
template <typename T>
struct Columns {
  const T *dy, *x;
  const RealOf<T>*mean, *inv;
  int64_t rows, step, c;
};
template <typename T>
OFSDP_MULTIARCH void column_dots(const Columns<T>& k, RealOf<T>* __restrict sum,
                                 RealOf<T>* __restrict dot) {
  const auto [dy, x, mean, inv, rows, step, c] = k;
  for (int64_t i = 0; i < c; ++i) sum[i] = dot[i] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < c; ++i) {
      const RealOf<T> d = as_real(dy[r * step + i]);
      sum[i] += d;
      dot[i] += d * ((as_real(x[r * step + i]) - mean[i]) * inv[i]);
    }
  }
}
template <typename T>
OFSDP_MULTIARCH void row_affine(const T* x, const RealOf<T>* mean, const RealOf<T>* factor,
                                const RealOf<T>* bias, T* y, int64_t c) {
#pragma GCC ivdep
  for (int64_t i = 0; i < c; ++i) {
    y[i] = stored<T>((as_real(x[i]) - mean[i]) * factor[i] + bias[i]);
  }
}
template <typename T>
struct RowGrad {
  const T *dy, *x;
  const RealOf<T>*mean, *factor, *shift, *slope;
  T* dx;
};
template <typename T>
OFSDP_MULTIARCH void row_grad(const RowGrad<T>& g, int64_t c) {
  const auto [dy, x, mean, factor, shift, slope, dx] = g;
#pragma GCC ivdep
  for (int64_t i = 0; i < c; ++i) {
    dx[i] = stored<T>(factor[i] * as_real(dy[i]) - shift[i] - (as_real(x[i]) - mean[i]) * slope[i]);
  }
}

// --- loops over partial sums ---

// Calls f(part, first channel, channels, first element, elements per channel) for each region in x
// that feeds partial sums [part][channel...].
void for_parts(const ChannelNormParams& e, const auto& f) {
  if (!e.last) {
    parallel_each(e.batch * e.channels, kElementGrain / (e.inner + 1) + 1, [&](int64_t i) {
      f(i / e.channels, i % e.channels, int64_t{1}, i * e.inner, e.inner);
    });
    return;
  }
  const int64_t parts = e.parts(), rows = e.count();
  const int64_t blocks = (e.channels + kColumns - 1) / kColumns;
  const int64_t work = rows / std::max<int64_t>(parts, 1) * std::min(kColumns, e.channels) + 1;
  parallel_each(parts * blocks, kElementGrain / work + 1, [&](int64_t i) {
    const int64_t part = i / blocks, channel = i % blocks * kColumns;
    const int64_t first = rows * part / parts, past = rows * (part + 1) / parts;
    f(part, channel, std::min(kColumns, e.channels - channel), first * e.channels + channel,
      past - first);
  });
}

// Returns the elements per channel in a partial sum.
int64_t part_size(const ChannelNormParams& e, int64_t part) {
  if (!e.last) return e.inner;
  return e.count() * (part + 1) / e.parts() - e.count() * part / e.parts();
}

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

// mean(g) and mean(g h).
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

// Adds partial[block] to dscale and dbias, in block order.
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

int64_t ChannelNormParams::parts() const {
  return last ? std::min(kMaxParts, (count() + kPartRows - 1) / kPartRows) : batch;
}

size_t ChannelNormParams::partial_count() const {
  return static_cast<size_t>(2 * parts() * channels);
}

template <typename T>
OFSDP_MULTIARCH RealOf<T> segment_mean(const T* x, int64_t n) {
  return lane_sum(n, [x](int64_t i) { return as_real(x[i]); }) / static_cast<RealOf<T>>(n);
}

template <typename T>
OFSDP_MULTIARCH RealOf<T> segment_squares(const T* x, RealOf<T> mean, int64_t n) {
  return lane_sum(n, [=](int64_t i) { return (as_real(x[i]) - mean) * (as_real(x[i]) - mean); });
}

template <typename T>
OFSDP_MULTIARCH RowDots segment_dots(const T* dy, const T* x, RealOf<T> mean, RealOf<T> inv,
                                     int64_t n) {
  const auto sum = lane_sum(n, [=](int64_t i) { return as_real(dy[i]); });
  const auto dot =
      lane_sum(n, [=](int64_t i) { return as_real(dy[i]) * ((as_real(x[i]) - mean) * inv); });
  return {static_cast<double>(sum), static_cast<double>(dot)};
}

template <typename T>
OFSDP_MULTIARCH void segment_affine(const T* x, RealOf<T> mean, RealOf<T> factor, RealOf<T> bias,
                                    T* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    y[i] = stored<T>((as_real(x[i]) - mean) * factor + bias);
  }
}

template <typename T>
OFSDP_MULTIARCH void segment_grad(const T* dy, const T* x, const GradFactors<RealOf<T>>& f, T* dx,
                                  int64_t n) {
  const auto [mean, factor, shift, slope] = f;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = stored<T>(factor * as_real(dy[i]) - shift - (as_real(x[i]) - mean) * slope);
  }
}

template <typename T>
void channel_stats(const ChannelNormParams& e, const T* x, RealOf<T>* mean, RealOf<T>* variance,
                   RealOf<T>* partial) {
  RealOf<T>* squares = partial + e.parts() * e.channels;
  for_parts(e, [&](int64_t part, int64_t channel, int64_t channels, int64_t at, int64_t n) {
    const int64_t to = part * e.channels + channel;
    if (e.last) return column_stats(x + at, n, e.channels, channels, partial + to, squares + to);
    partial[to] = segment_mean(x + at, n);
    squares[to] = segment_squares(x + at, partial[to], n);
  });
  for (int64_t c = 0; c < e.channels; ++c) {
    double count = 0, middle = 0, sum = 0;
    for (int64_t part = 0; part < e.parts(); ++part) {
      const auto n = static_cast<double>(part_size(e, part));
      const double far = static_cast<double>(partial[part * e.channels + c]) - middle;
      count += n;
      middle += far * n / count;
      sum +=
          static_cast<double>(squares[part * e.channels + c]) + far * far * n * (count - n) / count;
    }
    mean[c] = static_cast<RealOf<T>>(middle);
    variance[c] = static_cast<RealOf<T>>(sum / count);
  }
}

template <typename T>
void channel_dots(const ChannelNormParams& e, const T* dy, const T* x, const RealOf<T>* mean,
                  const RealOf<T>* inv, RealOf<T>* sum, RealOf<T>* dot, RealOf<T>* partial) {
  RealOf<T>* dots = partial + e.parts() * e.channels;
  for_parts(e, [&](int64_t part, int64_t channel, int64_t channels, int64_t at, int64_t n) {
    const int64_t to = part * e.channels + channel;
    if (e.last) {
      return column_dots<T>(
          {dy + at, x + at, mean + channel, inv + channel, n, e.channels, channels}, partial + to,
          dots + to);
    }
    const RowDots made = segment_dots(dy + at, x + at, mean[channel], inv[channel], n);
    partial[to] = static_cast<RealOf<T>>(made.sum);
    dots[to] = static_cast<RealOf<T>>(made.dot);
  });
  for (int64_t c = 0; c < e.channels; ++c) {
    double total = 0, total_dot = 0;
    for (int64_t part = 0; part < e.parts(); ++part) {
      total += static_cast<double>(partial[part * e.channels + c]);
      total_dot += static_cast<double>(dots[part * e.channels + c]);
    }
    sum[c] = static_cast<RealOf<T>>(total);
    dot[c] = static_cast<RealOf<T>>(total_dot);
  }
}

template <typename T>
void channel_affine(const ChannelNormParams& e, const T* x, const RealOf<T>* mean,
                    const RealOf<T>* factor, const RealOf<T>* bias, T* y) {
  const int64_t width = e.last ? e.channels : e.inner;
  parallel_each(e.last ? e.count() : e.batch * e.channels, kElementGrain / (width + 1) + 1,
                [&](int64_t i) {
                  const int64_t at = i * width, c = e.last ? 0 : i % e.channels;
                  if (e.last) {
                    row_affine(x + at, mean, factor, bias, y + at, width);
                  } else {
                    segment_affine(x + at, mean[c], factor[c], bias[c], y + at, width);
                  }
                });
}

template <typename T>
void channel_grad(const ChannelNormParams& e, const T* dy, const T* x, const RealOf<T>* mean,
                  const RealOf<T>* factor, const RealOf<T>* shift, const RealOf<T>* slope, T* dx) {
  const int64_t width = e.last ? e.channels : e.inner;
  parallel_each(e.last ? e.count() : e.batch * e.channels, kElementGrain / (width + 1) + 1,
                [&](int64_t i) {
                  const int64_t at = i * width, c = e.last ? 0 : i % e.channels;
                  if (e.last) {
                    row_grad<T>({dy + at, x + at, mean, factor, shift, slope, dx + at}, width);
                  } else {
                    segment_grad<T>(dy + at, x + at, {mean[c], factor[c], shift[c], slope[c]},
                                    dx + at, width);
                  }
                });
}

#define OFSDP_CHANNEL_NORM_OF(T, R)                                                                \
  template R segment_mean(const T*, int64_t);                                                      \
  template R segment_squares(const T*, R, int64_t);                                                \
  template RowDots segment_dots(const T*, const T*, R, R, int64_t);                                \
  template void segment_affine(const T*, R, R, R, T*, int64_t);                                    \
  template void segment_grad(const T*, const T*, const GradFactors<R>&, T*, int64_t);              \
  template void channel_stats(const ChannelNormParams&, const T*, R*, R*, R*);                     \
  template void channel_dots(const ChannelNormParams&, const T*, const T*, const R*, const R*, R*, \
                             R*, R*);                                                              \
  template void channel_affine(const ChannelNormParams&, const T*, const R*, const R*, const R*,   \
                               T*);                                                                \
  template void channel_grad(const ChannelNormParams&, const T*, const T*, const R*, const R*,     \
                             const R*, const R*, T*);
OFSDP_CHANNEL_NORM_OF(float, float)
OFSDP_CHANNEL_NORM_OF(BFloat16, float)
OFSDP_CHANNEL_NORM_OF(double, double)
#undef OFSDP_CHANNEL_NORM_OF

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
