// Pooling: a thread per output; in gradients a thread per input, which sums over the outputs that
// read it. Taps and outputs are visited in row-major order, so sums have a fixed order.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/conv/window.h"
#include "kernels/cuda/conv/windows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// 1 / the window's taps that count towards the average.
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

// The element that a thread writes: number i, in `plane` (image and channel), at `place` in the
// plane. at() maps a position of the other tensor's same plane to an element.
template <typename I>
struct Item {
  I i, plane, place[3], first, step;
  bool in_range;
  __device__ I at(I position) const { return first + position * step; }
};
template <typename I>
__device__ inline Item<I> item_of(const Windows<I>& w, const I* own, const I* other) {
  const I size = volume(own), others = volume(other);
  Item<I> t{};
  t.i = thread_index<I>();
  t.in_range = t.i < w.images * w.channels * size;
  const I rows = w.channels_last ? t.i / w.channels : t.i, image = rows / size;
  t.plane = w.channels_last ? image * w.channels + t.i % w.channels : image;
  unravel(own, rows % size, t.place);
  t.first = w.channels_last ? image * others * w.channels + t.i % w.channels : t.plane * others;
  t.step = w.channels_last ? w.channels : 1;
  return t;
}

template <typename I>
__device__ inline I stored_place(const Windows<I>& w, I at, bool column_major) {
  if (!column_major) return at;
  I p[3];
  unravel(w.in, at, p);
  return p[0] + w.in[0] * (p[1] + w.in[1] * p[2]);
}

// A thread per output: the maximum, the winning tap (-1: none) and the winner's index in x.
template <typename T, typename Winner, typename I>
OFSDP_CUDA_KERNEL max_kernel(Windows<I> w, const T* x, T* y, Winner* winners, int64_t* indices,
                             bool column_major, bool relu) {
  const Item<I> t = item_of(w, w.out, w.in);
  if (!t.in_range) return;
  I winner = -1, place = 0;
  float best = -INFINITY;
  for (Tap<I> tap; tap.number < volume(w.kernel); tap.next(w)) {
    const I at = seen(w, t.place, tap);
    if (at < 0) continue;
    const float v = to_float(x[t.at(at)]);
    if (winner >= 0 && !(v > best) && v == v) continue;  // the first of equal values wins; NaN wins
    best = v;
    winner = tap.number;
    place = t.plane * volume(w.in) + stored_place(w, at, column_major);
  }
  if (relu && !(best > 0)) winner = -1;
  if (relu && best < 0) best = 0;
  y[t.i] = Stored<T>::from(best);
  if (winners != nullptr) winners[t.i] = static_cast<Winner>(winner);
  if (indices != nullptr) indices[t.i] = place;
}

// A thread per input sums dy over the outputs that it won.
template <typename T, typename Winner, typename I>
OFSDP_CUDA_KERNEL max_grad_kernel(Windows<I> w, const T* dy, const Winner* winners, T* dx) {
  const Item<I> t = item_of(w, w.in, w.out);
  if (!t.in_range) return;
  float sum = 0;
  // Taps in falling order visit outputs in rising order.
  for (Tap<I> tap = Tap<I>::last(w); tap.number >= 0; tap.previous(w)) {
    const I o = seer(w, t.place, tap);
    if (o < 0) continue;
    const I e = t.at(o);
    if (winners[e] == static_cast<Winner>(tap.number)) sum += to_float(dy[e]);
  }
  dx[t.i] = Stored<T>::from(sum);
}

// A thread per output.
template <typename T, typename I>
OFSDP_CUDA_KERNEL average_kernel(Windows<I> w, bool count_pad, const T* x, T* y) {
  const Item<I> t = item_of(w, w.out, w.in);
  if (!t.in_range) return;
  float sum = 0;
  for (Tap<I> tap; tap.number < volume(w.kernel); tap.next(w)) {
    const I at = seen(w, t.place, tap);
    if (at >= 0) sum += to_float(x[t.at(at)]);
  }
  y[t.i] = Stored<T>::from(sum * average_scale(w, t.place, count_pad));
}

// A thread per input adds dy times average_scale over the outputs that read it.
template <typename T, typename I>
OFSDP_CUDA_KERNEL average_grad_kernel(Windows<I> w, bool count_pad, const T* dy, T* dx) {
  const Item<I> t = item_of(w, w.in, w.out);
  if (!t.in_range) return;
  I o[3];
  float sum = 0;
  for (Tap<I> tap = Tap<I>::last(w); tap.number >= 0; tap.previous(w)) {
    const I position = seer(w, t.place, tap);
    if (position < 0) continue;
    unravel(w.out, position, o);
    sum += to_float(dy[t.at(position)]) * average_scale(w, o, count_pad);
  }
  dx[t.i] = Stored<T>::from(sum);
}

// Calls f(windows, T{}) with 32-bit index arithmetic if the tensors allow, else 64-bit.
template <typename F>
cudaError_t with_planes(const WindowParams& w, const F& f) {
  const int64_t elements = w.images * w.channels * std::max(volume(w.in), volume(w.out));
  return with_windows(w, elements, f);
}

// Calls f(Winner{}) with the integer type in which the CPU stores winning taps.
template <typename F>
cudaError_t with_winner(const WindowParams& w, const F& f) {
  return volume(w.kernel) <= 255 ? f(uint8_t{}) : f(int32_t{});
}

// A thread per output: (sum |x|^p)^(1/p).
template <typename T, typename I>
OFSDP_CUDA_KERNEL lp_kernel(Windows<I> w, int64_t p, const T* x, T* y) {
  const Item<I> t = item_of(w, w.out, w.in);
  if (!t.in_range) return;
  float sum = 0;
  for (Tap<I> tap; tap.number < volume(w.kernel); tap.next(w)) {
    const I at = seen(w, t.place, tap);
    if (at < 0) continue;
    const float v = fabsf(to_float(x[t.at(at)]));
    sum += p == 2 ? v * v : p == 1 ? v : powf(v, static_cast<float>(p));
  }
  y[t.i] = Stored<T>::from(p == 2   ? sqrtf(sum)
                           : p == 1 ? sum
                                    : powf(sum, 1.0f / static_cast<float>(p)));
}

// A thread per input.
template <typename T, typename I>
OFSDP_CUDA_KERNEL lp_grad_kernel(Windows<I> w, int64_t p, const T* dy, const T* x, const T* y,
                                 T* dx) {
  const Item<I> t = item_of(w, w.in, w.out);
  if (!t.in_range) return;
  const float v = to_float(x[t.i]);
  float sum = 0;
  for (Tap<I> tap; tap.number < volume(w.kernel); tap.next(w)) {
    const I o = seer(w, t.place, tap);
    if (o < 0) continue;
    const I to = t.at(o);
    const float made = to_float(y[to]);
    if (made == 0 || v == 0) continue;
    sum += to_float(dy[to]) * copysignf(powf(fabsf(v) / made, static_cast<float>(p - 1)), v);
  }
  dx[t.i] = Stored<T>::from(sum);
}

}  // namespace

cudaError_t max_pool(const WindowParams& w, const void* x, void* y, void* winners, int64_t* indices,
                     bool column_major, bool relu, cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.out);
  if (w.channels_last && indices != nullptr) return cudaErrorNotSupported;
  return with_planes(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    return with_winner(w, [&]<typename Winner>(Winner) {
      return over(n, stream, max_kernel<T, Winner, I>, windows, x, y, winners, indices,
                  column_major, relu);
    });
  });
}

cudaError_t max_pool_grad(const WindowParams& w, const void* dy, const void* winners, void* dx,
                          cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.in);
  return with_planes(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    return with_winner(w, [&]<typename Winner>(Winner) {
      return over(n, stream, max_grad_kernel<T, Winner, I>, windows, dy, winners, dx);
    });
  });
}

cudaError_t average_pool(const WindowParams& w, bool back, bool count_pad, const void* from,
                         void* to, cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(back ? w.in : w.out);
  return with_planes(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    return over(n, stream, back ? average_grad_kernel<T, I> : average_kernel<T, I>, windows,
                count_pad, from, to);
  });
}

cudaError_t lp_pool(const WindowParams& w, int64_t p, const void* x, void* y, cudaStream_t stream) {
  return with_planes(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    return over(w.images * w.channels * volume(w.out), stream, lp_kernel<T, I>, windows, p, x, y);
  });
}

cudaError_t lp_pool_grad(const WindowParams& w, int64_t p, const void* dy, const void* x,
                         const void* y, void* dx, cudaStream_t stream) {
  return with_planes(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    return over(w.images * w.channels * volume(w.in), stream, lp_grad_kernel<T, I>, windows, p, dy,
                x, y, dx);
  });
}

}  // namespace ofsdp::kernels::cuda
