#include "kernels/cpu/channel_norm.h"

#include <algorithm>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kPartRows = 64;  // rows of a partial sum if channels come last, at least
constexpr int64_t kMaxParts = 128;

// Channels last: rows of `c` channels, `rows` of them; a block of at most kColumns at a time.
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

// Calls f(part, first channel, channels, first element, elements of each channel) for the region of
// x of partial sums [part][channel...].
void for_parts(const ChannelExtent& e, const auto& f) {
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

// Elements of each channel in a partial sum.
int64_t part_size(const ChannelExtent& e, int64_t part) {
  if (!e.last) return e.inner;
  return e.count() * (part + 1) / e.parts() - e.count() * part / e.parts();
}

}  // namespace

int64_t ChannelExtent::parts() const {
  return last ? std::min(kMaxParts, (count() + kPartRows - 1) / kPartRows) : batch;
}

size_t ChannelExtent::partial_count() const { return static_cast<size_t>(2 * parts() * channels); }

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
void channel_stats(const ChannelExtent& e, const T* x, RealOf<T>* mean, RealOf<T>* variance,
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
void channel_dots(const ChannelExtent& e, const T* dy, const T* x, const RealOf<T>* mean,
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
void channel_affine(const ChannelExtent& e, const T* x, const RealOf<T>* mean,
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
void channel_grad(const ChannelExtent& e, const T* dy, const T* x, const RealOf<T>* mean,
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
  template void channel_stats(const ChannelExtent&, const T*, R*, R*, R*);                         \
  template void channel_dots(const ChannelExtent&, const T*, const T*, const R*, const R*, R*, R*, \
                             R*);                                                                  \
  template void channel_affine(const ChannelExtent&, const T*, const R*, const R*, const R*, T*);  \
  template void channel_grad(const ChannelExtent&, const T*, const T*, const R*, const R*,         \
                             const R*, const R*, T*);
OFSDP_CHANNEL_NORM_OF(float, float)
OFSDP_CHANNEL_NORM_OF(BFloat16, float)
OFSDP_CHANNEL_NORM_OF(double, double)
#undef OFSDP_CHANNEL_NORM_OF

}  // namespace ofsdp::kernels
