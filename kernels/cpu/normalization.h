// Normalisation by channel and by row; functions fan out over the pool.
//
// By channel: T is float, BFloat16 or double, tensors are [batch, channels, inner] (plain) or
// [batch, inner, channels] (channels last), statistics and factors RealOf<T>.
//
// Sums over batch and inner use partial sums that depend only on the shape (one for each image, or
// for each row block if channels come last), joined in order in double, so threads change no bits.
// Variances are sums of squares around each partial's own mean, joined by Chan's formula: one pass
// over memory, without cancellation.
//
//   channel_stats      each channel's mean and population variance
//   channel_dots       sum dy, and sum dy (x - mean) inv
//   channel_affine     y = (x - mean) factor + bias
//   channel_grad       dx = factor dy - shift - (x - mean) slope
//
// y may be x, dx may be dy or x.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

struct ChannelNormParams {
  int64_t batch = 0, channels = 0, inner = 0;
  bool last = false;  // channels last

  int64_t count() const { return batch * inner; }  // elements in a channel
  int64_t parts() const;                           // partial sums for each channel
  size_t partial_count() const;                    // workspace elements for stats and dots
};

template <typename T>
void channel_stats(const ChannelNormParams& e, const T* x, RealOf<T>* mean, RealOf<T>* variance,
                   RealOf<T>* partial);
template <typename T>
void channel_dots(const ChannelNormParams& e, const T* dy, const T* x, const RealOf<T>* mean,
                  const RealOf<T>* inv, RealOf<T>* sum, RealOf<T>* dot, RealOf<T>* partial);
template <typename T>
void channel_affine(const ChannelNormParams& e, const T* x, const RealOf<T>* mean,
                    const RealOf<T>* factor, const RealOf<T>* bias, T* y);
template <typename T>
void channel_grad(const ChannelNormParams& e, const T* dy, const T* x, const RealOf<T>* mean,
                  const RealOf<T>* factor, const RealOf<T>* shift, const RealOf<T>* slope, T* dx);

// For group_normalization.cpp: functions on `n` contiguous elements in one channel.
struct RowDots {
  double sum, dot;
};
template <typename T>
RealOf<T> segment_mean(const T* x, int64_t n);
template <typename T>
RealOf<T> segment_squares(const T* x, RealOf<T> mean, int64_t n);  // sum of (x - mean)^2
template <typename T>
RowDots segment_dots(const T* dy, const T* x, RealOf<T> mean, RealOf<T> inv, int64_t n);
template <typename T>
void segment_affine(const T* x, RealOf<T> mean, RealOf<T> factor, RealOf<T> bias, T* y, int64_t n);

template <typename R>
struct GradFactors {
  R mean, factor, shift, slope;
};
template <typename T>
void segment_grad(const T* dy, const T* x, const GradFactors<RealOf<T>>& f, T* dx, int64_t n);

// Normalisation by row, for LayerNormalization (centred) and RMSNormalization (not), in float,
// double, bfloat16 or float16; 16-bit floats compute in float. Statistics are float32.
//
//   forward   y = (x - mean) inv scale + bias; inv = 1 / sqrt(mean((x - mean)^2) + epsilon);
//             mean is 0 if not centred
//   backward  g = dy scale, h = (x - mean) inv:
//             dx = inv (g - mean(g) - h mean(g h)), without mean(g) if not centred,
//             plus the statistics' gradient: dmean / n - dinv inv^2 h / n;
//             dx, rounded to x's type, plus addend: the bits that a separate Add gives
//             dscale = sum dy h over rows, dbias = sum dy
//
// One pass over memory each way: a row stays in cache between sums and results. dscale and dbias
// are summed in row blocks that depend only on the shape, so threads change no bits. y may be x;
// dx may be dy, x or addend.

struct NormRows {
  int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
  bool centred = true;
  int64_t scale_step = 0, bias_step = 0;  // between rows: 0, or the width if they differ
};

template <typename T>
struct NormForward {
  const T* x;
  const T* scale;  // null: 1
  const T* bias;   // null: 0
  T* y;
  float* mean;  // null: not wanted
  float* inv;   // null: not wanted
};

template <typename T>
struct NormBackward {
  const T *dy, *x, *scale;
  const float *mean, *inv;    // mean null: not centred
  const float *dmean, *dinv;  // null: none
  const T* addend;            // null: none
  T *dx, *dscale, *dbias;     // dscale, dbias null: not wanted
  RealOf<T>* partial;         // norm_partial_count(rows) * 2 * width
};

int64_t norm_partial_count(const NormRows& n);  // row blocks

template <typename T>
void norm_rows(const NormRows& n, const NormForward<T>& f);
template <typename T>
void norm_rows_grad(const NormRows& n, const NormBackward<T>& b);

}  // namespace ofsdp::kernels
