// Pooling: a thread an element of what is written. Taps and outputs are walked in row-major order.
//
// A thread an output, or, backwards, an input, which adds up the outputs that saw it in the order of its taps.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/conv/window.h"
#include "kernels/cuda/conv/windows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// 1 / the number of taps of an output that count.
template <typename I>
__device__ inline float average_scale(const Windows<I>& w, const I* o, bool count_pad) {
  I count = 1;
  for (int a = 0; a < 3; ++a) {
    I inside = 0;
    for (I k = 0; k < w.kernel[a]; ++k) {
      const I p = o[a] * w.strides[a] - w.pads_begin[a] + k * w.dilations[a];
      inside += count_pad ? p < w.in[a] + w.pads_end[a] : p >= 0 && p < w.in[a];
    }
    count *= inside;
  }
  return count == 0 ? 0.0f : 1.0f / static_cast<float>(count);
}

// Element `i` of a tensor with `size` positions: its plane (image and channel) and position.
template <typename I>
struct Place {
  I plane, position;
};
template <typename I>
__device__ inline Place<I> place_of(const Windows<I>& w, I i, I size) {
  if (!w.channels_last) return {i / size, i % size};
  const I at = i / w.channels;
  return {at / size * w.channels + i % w.channels, at % size};
}
// Where the positions of a plane lie, among `size`.
template <typename I>
struct Lane {
  I first, step;
  __device__ I at(I position) const { return first + position * step; }
};
template <typename I>
__device__ inline Lane<I> lane_of(const Windows<I>& w, I plane, I size) {
  if (!w.channels_last) return {plane * size, 1};
  const I image = plane / w.channels;
  return {image * size * w.channels + (plane - image * w.channels), w.channels};
}

template <typename I>
__device__ inline I stored_place(const Windows<I>& w, I at, bool column_major) {
  if (!column_major) return at;
  I p[3];
  unravel(w.in, at, p);
  return p[0] + w.in[0] * (p[1] + w.in[1] * p[2]);
}

template <typename T, typename Winner, typename I>
OFSDP_CUDA_KERNEL max_kernel(Windows<I> w, const T* x, T* y, Winner* winners, int64_t* indices,
                             bool column_major, bool relu) {
  const I out = volume(w.out), in = volume(w.in);
  const I i = thread_index<I>();
  if (i >= w.images * w.channels * out) return;
  const Place<I> p = place_of(w, i, out);
  const Lane<I> from = lane_of(w, p.plane, in);
  I o[3], winner = -1, place = 0;
  unravel(w.out, p.position, o);
  float best = -INFINITY;
  for (Tap<I> tap; tap.number < volume(w.kernel); tap.next(w)) {
    const I at = seen(w, o, tap);
    if (at < 0) continue;
    const float v = to_float(x[from.at(at)]);
    if (winner >= 0 && !(v > best) && v == v) continue;  // the first of equal ones; NaN wins
    best = v;
    winner = tap.number;
    place = p.plane * in + stored_place(w, at, column_major);
  }
  if (relu && !(best > 0)) winner = -1;
  if (relu && best < 0) best = 0;
  y[i] = Stored<T>::from(best);
  if (winners != nullptr) winners[i] = static_cast<Winner>(winner);
  if (indices != nullptr) indices[i] = place;
}

template <typename T, typename Winner, typename I>
OFSDP_CUDA_KERNEL max_grad_kernel(Windows<I> w, const T* dy, const Winner* winners, T* dx) {
  const I out = volume(w.out), in = volume(w.in);
  const I i = thread_index<I>();
  if (i >= w.images * w.channels * in) return;
  const Place<I> p = place_of(w, i, in);
  const Lane<I> from = lane_of(w, p.plane, out);
  I at[3];
  unravel(w.in, p.position, at);
  float sum = 0;
  // Falling taps: rising outputs.
  for (Tap<I> tap = Tap<I>::last(w); tap.number >= 0; tap.previous(w)) {
    const I o = seer(w, at, tap);
    if (o < 0) continue;
    const I e = from.at(o);
    if (winners[e] == static_cast<Winner>(tap.number)) sum += to_float(dy[e]);
  }
  dx[i] = Stored<T>::from(sum);
}

template <typename T, typename I>
OFSDP_CUDA_KERNEL average_kernel(Windows<I> w, bool count_pad, const T* x, T* y) {
  const I out = volume(w.out), in = volume(w.in);
  const I i = thread_index<I>();
  if (i >= w.images * w.channels * out) return;
  const Place<I> p = place_of(w, i, out);
  const Lane<I> from = lane_of(w, p.plane, in);
  I o[3];
  unravel(w.out, p.position, o);
  float sum = 0;
  for (Tap<I> tap; tap.number < volume(w.kernel); tap.next(w)) {
    const I at = seen(w, o, tap);
    if (at >= 0) sum += to_float(x[from.at(at)]);
  }
  y[i] = Stored<T>::from(sum * average_scale(w, o, count_pad));
}

template <typename T, typename I>
OFSDP_CUDA_KERNEL average_grad_kernel(Windows<I> w, bool count_pad, const T* dy, T* dx) {
  const I out = volume(w.out), in = volume(w.in);
  const I i = thread_index<I>();
  if (i >= w.images * w.channels * in) return;
  const Place<I> p = place_of(w, i, in);
  const Lane<I> from = lane_of(w, p.plane, out);
  I at[3], o[3];
  unravel(w.in, p.position, at);
  float sum = 0;
  for (Tap<I> tap = Tap<I>::last(w); tap.number >= 0; tap.previous(w)) {
    const I position = seer(w, at, tap);
    if (position < 0) continue;
    unravel(w.out, position, o);
    sum += to_float(dy[from.at(position)]) * average_scale(w, o, count_pad);
  }
  dx[i] = Stored<T>::from(sum);
}

// f(Windows of 32 or 64 bits, an element).
template <typename F>
cudaError_t with_planes(const WindowExtent& w, const F& f) {
  const int64_t most = w.images * w.channels * std::max(volume(w.in), volume(w.out));
  return with_windows(w, most, f);
}

// Winners as the CPU stores them: f(Winner).
template <typename F>
cudaError_t with_winner(const WindowExtent& w, const F& f) {
  return volume(w.kernel) <= 255 ? f(uint8_t{}) : f(int32_t{});
}

template <typename T, typename I>
OFSDP_CUDA_KERNEL lp_kernel(Windows<I> w, int64_t p, const T* x, T* y) {
  const I out = volume(w.out), taps = volume(w.kernel), i = thread_index<I>();
  if (i >= w.images * w.channels * out) return;
  I o[3];
  unravel(w.out, i % out, o);
  float sum = 0;
  for (Tap<I> tap; tap.number < taps; tap.next(w)) {
    const I at = seen(w, o, tap);
    if (at < 0) continue;
    const float v = fabsf(to_float(x[i / out * volume(w.in) + at]));
    sum += p == 2 ? v * v : p == 1 ? v : powf(v, static_cast<float>(p));
  }
  y[i] = Stored<T>::from(p == 2   ? sqrtf(sum)
                         : p == 1 ? sum
                                  : powf(sum, 1.0f / static_cast<float>(p)));
}

template <typename T, typename I>
OFSDP_CUDA_KERNEL lp_grad_kernel(Windows<I> w, int64_t p, const T* dy, const T* x, const T* y,
                                 T* dx) {
  const I in = volume(w.in), taps = volume(w.kernel), i = thread_index<I>();
  if (i >= w.images * w.channels * in) return;
  I at[3];
  unravel(w.in, i % in, at);
  const float v = to_float(x[i]);
  float sum = 0;
  for (Tap<I> tap; tap.number < taps; tap.next(w)) {
    const I o = seer(w, at, tap);
    if (o < 0) continue;
    const I to = i / in * volume(w.out) + o;
    const float made = to_float(y[to]);
    if (made == 0 || v == 0) continue;
    sum += to_float(dy[to]) * copysignf(powf(fabsf(v) / made, static_cast<float>(p - 1)), v);
  }
  dx[i] = Stored<T>::from(sum);
}

}  // namespace

cudaError_t max_pool(const WindowExtent& w, const void* x, void* y, void* winners, int64_t* indices,
                     bool column_major, bool relu, cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.out);
  if (w.channels_last && indices != nullptr) return cudaErrorNotSupported;
  return with_planes(w, [&](auto windows, auto element) {
    using T = decltype(element);
    using I = typename decltype(windows)::Index;
    return with_winner(w, [&](auto winner) {
      using Winner = decltype(winner);
      return over(n, stream, max_kernel<T, Winner, I>, windows, x, y, winners, indices,
                  column_major, relu);
    });
  });
}

cudaError_t max_pool_grad(const WindowExtent& w, const void* dy, const void* winners, void* dx,
                          cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.in);
  return with_planes(w, [&](auto windows, auto element) {
    using T = decltype(element);
    using I = typename decltype(windows)::Index;
    return with_winner(w, [&](auto winner) {
      using Winner = decltype(winner);
      return over(n, stream, max_grad_kernel<T, Winner, I>, windows, dy, winners, dx);
    });
  });
}

cudaError_t average_pool(const WindowExtent& w, bool count_pad, const void* x, void* y,
                         cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.out);
  return with_planes(w, [&](auto windows, auto element) {
    using T = decltype(element);
    using I = typename decltype(windows)::Index;
    return over(n, stream, average_kernel<T, I>, windows, count_pad, x, y);
  });
}

cudaError_t average_pool_grad(const WindowExtent& w, bool count_pad, const void* dy, void* dx,
                              cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.in);
  return with_planes(w, [&](auto windows, auto element) {
    using T = decltype(element);
    using I = typename decltype(windows)::Index;
    return over(n, stream, average_grad_kernel<T, I>, windows, count_pad, dy, dx);
  });
}

cudaError_t lp_pool(const WindowExtent& w, int64_t p, const void* x, void* y, cudaStream_t stream) {
  return with_planes(w, [&](auto windows, auto t) {
    return over(w.images * w.channels * volume(w.out), stream,
                lp_kernel<decltype(t), typename decltype(windows)::Index>, windows, p, x, y);
  });
}

cudaError_t lp_pool_grad(const WindowExtent& w, int64_t p, const void* dy, const void* x,
                         const void* y, void* dx, cudaStream_t stream) {
  return with_planes(w, [&](auto windows, auto t) {
    return over(w.images * w.channels * volume(w.in), stream,
                lp_grad_kernel<decltype(t), typename decltype(windows)::Index>, windows, p, dy, x,
                y, dx);
  });
}

}  // namespace ofsdp::kernels::cuda
