// Normalisation by channel, of float, BFloat16 or double (T), over [batch, channels, inner]
// (plain) or [batch, inner, channels] (channels last). Statistics and factors are RealOf<T>.
//
// Sums over batch and inner go through partial sums that depend on the shape only (one per image,
// or per block of rows if channels come last) and are joined in their order in double, so threads
// change no bits. Variances are sums of squares around each partial's own mean, joined by Chan's
// formula: one pass over memory, without cancellation.
//
//   channel_stats      mean and variance (of the population) of each channel
//   channel_dots       sum of dy, and of dy (x - mean) inv
//   channel_affine     y = (x - mean) factor + bias
//   channel_grad       dx = factor dy - shift - (x - mean) slope
//
// The functions fan out over the pool. y may be x, dx may be dy or x.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

struct ChannelExtent {
  int64_t batch = 0, channels = 0, inner = 0;
  bool last = false;  // channels last

  int64_t count() const { return batch * inner; }  // elements of a channel
  int64_t parts() const;                           // partial sums of each channel
  size_t partial_count() const;                    // elements of the workspace of stats and dots
};

template <typename T>
void channel_stats(const ChannelExtent& e, const T* x, RealOf<T>* mean, RealOf<T>* variance,
                   RealOf<T>* partial);
template <typename T>
void channel_dots(const ChannelExtent& e, const T* dy, const T* x, const RealOf<T>* mean,
                  const RealOf<T>* inv, RealOf<T>* sum, RealOf<T>* dot, RealOf<T>* partial);
template <typename T>
void channel_affine(const ChannelExtent& e, const T* x, const RealOf<T>* mean,
                    const RealOf<T>* factor, const RealOf<T>* bias, T* y);
template <typename T>
void channel_grad(const ChannelExtent& e, const T* dy, const T* x, const RealOf<T>* mean,
                  const RealOf<T>* factor, const RealOf<T>* shift, const RealOf<T>* slope, T* dx);

// Sums of one row of `n` elements of one channel, for group_normalization.cpp.
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

}  // namespace ofsdp::kernels
