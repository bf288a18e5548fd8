// A thread an element of what is written, of rows of taps a 16-byte pack of channels where they fit. Taps and outputs are
// walked in row-major order.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/window.h"

namespace ofsdp::cuda {
namespace {

constexpr int kThreads = 256;

__host__ __device__ inline int64_t volume(const int64_t* size) {
  return size[0] * size[1] * size[2];
}

// Of spatial position `at` (row-major) the place on each axis.
__host__ __device__ inline void unravel(const int64_t* size, int64_t at, int64_t* index) {
  index[2] = at % size[2];
  index[1] = at / size[2] % size[1];
  index[0] = at / size[2] / size[1];
}

// The input position that output `o` sees through tap `k`; -1: outside.
__host__ __device__ inline int64_t seen(const WindowExtent& w, const int64_t* o, int64_t tap) {
  int64_t k[3], at = 0;
  unravel(w.kernel, tap, k);
  for (int a = 0; a < 3; ++a) {
    const int64_t p = o[a] * w.strides[a] - w.pads_begin[a] + k[a] * w.dilations[a];
    if (p < 0 || p >= w.in[a]) return -1;
    at = at * w.in[a] + p;
  }
  return at;
}

// The output that sees input position `p` through tap `k`; -1: none.
__host__ __device__ inline int64_t seer(const WindowExtent& w, const int64_t* p, int64_t tap) {
  int64_t k[3], at = 0;
  unravel(w.kernel, tap, k);
  for (int a = 0; a < 3; ++a) {
    const int64_t from = p[a] + w.pads_begin[a] - k[a] * w.dilations[a];
    const int64_t o = from / w.strides[a];
    if (from < 0 || from % w.strides[a] != 0 || o >= w.out[a]) return -1;
    at = at * w.out[a] + o;
  }
  return at;
}

// 1 / the number of taps of an output that count.
__host__ __device__ inline float average_scale(const WindowExtent& w, const int64_t* o,
                                               bool count_pad) {
  int64_t count = 1;
  for (int a = 0; a < 3; ++a) {
    int64_t inside = 0;
    for (int64_t k = 0; k < w.kernel[a]; ++k) {
      const int64_t p = o[a] * w.strides[a] - w.pads_begin[a] + k * w.dilations[a];
      inside += count_pad ? p < w.in[a] + w.pads_end[a] : p >= 0 && p < w.in[a];
    }
    count *= inside;
  }
  return count == 0 ? 0.0f : 1.0f / static_cast<float>(count);
}

// Element `i` of a tensor with `size` positions: its plane (image and channel) and position; and the way back.
struct Place {
  int64_t plane, position;
};
__device__ inline Place place_of(const WindowExtent& w, int64_t i, int64_t size) {
  if (!w.channels_last) return {i / size, i % size};
  const int64_t at = i / w.channels;
  return {at / size * w.channels + i % w.channels, at % size};
}
__device__ inline int64_t element(const WindowExtent& w, int64_t plane, int64_t position,
                                  int64_t size) {
  if (!w.channels_last) return plane * size + position;
  return (plane / w.channels * size + position) * w.channels + plane % w.channels;
}

__device__ inline int64_t stored_place(const WindowExtent& w, int64_t at, bool column_major) {
  if (!column_major) return at;
  int64_t p[3];
  unravel(w.in, at, p);
  return p[0] + w.in[0] * (p[1] + w.in[1] * p[2]);
}

template <typename T, typename Winner>
__global__ void __launch_bounds__(kThreads)
    max_kernel(WindowExtent w, const T* x, T* y, Winner* winners, int64_t* indices,
               bool column_major, bool relu) {
  const int64_t out = volume(w.out), in = volume(w.in);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * out) return;
  const Place p = place_of(w, i, out);
  int64_t o[3], winner = -1, place = 0;
  unravel(w.out, p.position, o);
  float best = -INFINITY;
  for (int64_t tap = 0; tap < volume(w.kernel); ++tap) {
    const int64_t at = seen(w, o, tap);
    if (at < 0) continue;
    const float v = to_float(x[element(w, p.plane, at, in)]);
    if (winner >= 0 && !(v > best) && v == v) continue;  // the first of equal ones; NaN wins
    best = v;
    winner = tap;
    place = p.plane * in + stored_place(w, at, column_major);
  }
  if (relu && !(best > 0)) winner = -1;
  if (relu && best < 0) best = 0;
  y[i] = Stored<T>::from(best);
  if (winners != nullptr) winners[i] = static_cast<Winner>(winner);
  if (indices != nullptr) indices[i] = place;
}

template <typename T, typename Winner>
__global__ void __launch_bounds__(kThreads)
    max_grad_kernel(WindowExtent w, const T* dy, const Winner* winners, T* dx) {
  const int64_t out = volume(w.out), in = volume(w.in);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * in) return;
  const Place p = place_of(w, i, in);
  int64_t at[3];
  unravel(w.in, p.position, at);
  float sum = 0;
  for (int64_t tap = volume(w.kernel) - 1; tap >= 0; --tap) {  // falling taps: rising outputs
    const int64_t o = seer(w, at, tap);
    if (o < 0) continue;
    const int64_t e = element(w, p.plane, o, out);
    if (winners[e] == static_cast<Winner>(tap)) sum += to_float(dy[e]);
  }
  dx[i] = Stored<T>::from(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    average_kernel(WindowExtent w, bool count_pad, const T* x, T* y) {
  const int64_t out = volume(w.out), in = volume(w.in);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * out) return;
  const Place p = place_of(w, i, out);
  int64_t o[3];
  unravel(w.out, p.position, o);
  float sum = 0;
  for (int64_t tap = 0; tap < volume(w.kernel); ++tap) {
    const int64_t at = seen(w, o, tap);
    if (at >= 0) sum += to_float(x[element(w, p.plane, at, in)]);
  }
  y[i] = Stored<T>::from(sum * average_scale(w, o, count_pad));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    average_grad_kernel(WindowExtent w, bool count_pad, const T* dy, T* dx) {
  const int64_t out = volume(w.out), in = volume(w.in);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * in) return;
  const Place p = place_of(w, i, in);
  int64_t at[3], o[3];
  unravel(w.in, p.position, at);
  float sum = 0;
  for (int64_t tap = volume(w.kernel) - 1; tap >= 0; --tap) {
    const int64_t position = seer(w, at, tap);
    if (position < 0) continue;
    unravel(w.out, position, o);
    sum += to_float(dy[element(w, p.plane, position, out)]) * average_scale(w, o, count_pad);
  }
  dx[i] = Stored<T>::from(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    im2col_kernel(WindowExtent w, int64_t image_step, const T* x, T* columns) {
  const int64_t out = volume(w.out), taps = volume(w.kernel);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * taps * out) return;
  int64_t o[3];
  unravel(w.out, i % out, o);
  const int64_t row = i / out, plane = row / taps;
  const int64_t at = seen(w, o, row % taps);
  const T* from = x + plane / w.channels * image_step + plane % w.channels * volume(w.in);
  columns[i] = at < 0 ? Stored<T>::from(0.0f) : from[at];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    col2im_kernel(WindowExtent w, int64_t image_step, const T* columns, T* dx) {
  const int64_t out = volume(w.out), in = volume(w.in), taps = volume(w.kernel);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * in) return;
  const int64_t plane = i / in;
  int64_t at[3];
  unravel(w.in, i % in, at);
  float sum = 0;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t o = seer(w, at, tap);
    if (o >= 0) sum += to_float(columns[(plane * taps + tap) * out + o]);
  }
  dx[plane / w.channels * image_step + plane % w.channels * in + i % in] = Stored<T>::from(sum);
}

// V channels of a row.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) im2row_kernel(WindowExtent w, const T* x, T* columns) {
  const int64_t out = volume(w.out), taps = volume(w.kernel), in = volume(w.in);
  const int64_t packs = w.channels / V;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * out * taps * packs) return;
  const int64_t row = i / packs, output = row / taps, channel = (i - row * packs) * V;
  int64_t o[3];
  unravel(w.out, output % out, o);
  const int64_t at = seen(w, o, row % taps);
  Pack<T, V> made;
#pragma unroll
  for (int k = 0; k < V; ++k) made.v[k] = Stored<T>::from(0.0f);
  const int64_t from = (output / out * in + at) * w.channels + channel;
  if (at >= 0) made = *reinterpret_cast<const Pack<T, V>*>(x + from);
  *reinterpret_cast<Pack<T, V>*>(columns + i * V) = made;
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) row2im_kernel(WindowExtent w, const T* columns, T* dx) {
  const int64_t out = volume(w.out), in = volume(w.in), taps = volume(w.kernel);
  const int64_t packs = w.channels / V;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * in * packs) return;
  const int64_t position = i / packs, channel = (i - position * packs) * V;
  int64_t at[3];
  unravel(w.in, position % in, at);
  float sum[V] = {}, more[V];
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t o = seer(w, at, tap);
    if (o < 0) continue;
    load<V>(columns + ((position / in * out + o) * taps + tap) * w.channels + channel, more);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += more[k];
  }
  store<V>(dx + i * V, sum);
}

// kernel(blocks of n elements, arguments...)
template <typename K, typename... A>
cudaError_t over(int64_t n, cudaStream_t stream, K kernel, A... arguments) {
  return launch_blocks(stream, blocks_for(n, kThreads), kThreads, kernel, arguments...);
}

}  // namespace

cudaError_t max_pool(const WindowExtent& w, const void* x, void* y, void* winners, int64_t* indices,
                     bool column_major, bool relu, cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.out);
  if (w.channels_last && indices != nullptr) return cudaErrorNotSupported;
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(y);
    return volume(w.kernel) <= 255
               ? over(n, stream, max_kernel<T, uint8_t>, w, from, to,
                      static_cast<uint8_t*>(winners), indices, column_major, relu)
               : over(n, stream, max_kernel<T, int32_t>, w, from, to,
                      static_cast<int32_t*>(winners), indices, column_major, relu);
  });
}

cudaError_t max_pool_grad(const WindowExtent& w, const void* dy, const void* winners, void* dx,
                          cudaStream_t stream) {
  const int64_t n = w.images * w.channels * volume(w.in);
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    const T* from = static_cast<const T*>(dy);
    T* to = static_cast<T*>(dx);
    return volume(w.kernel) <= 255 ? over(n, stream, max_grad_kernel<T, uint8_t>, w, from,
                                          static_cast<const uint8_t*>(winners), to)
                                   : over(n, stream, max_grad_kernel<T, int32_t>, w, from,
                                          static_cast<const int32_t*>(winners), to);
  });
}

cudaError_t average_pool(const WindowExtent& w, bool count_pad, const void* x, void* y,
                         cudaStream_t stream) {
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    return over(w.images * w.channels * volume(w.out), stream, average_kernel<T>, w, count_pad,
                static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t average_pool_grad(const WindowExtent& w, bool count_pad, const void* dy, void* dx,
                              cudaStream_t stream) {
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    return over(w.images * w.channels * volume(w.in), stream, average_grad_kernel<T>, w, count_pad,
                static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

cudaError_t im2col(const WindowExtent& w, int64_t image_step, const void* x, void* columns,
                   cudaStream_t stream) {
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    return over(w.images * w.channels * volume(w.kernel) * volume(w.out), stream, im2col_kernel<T>,
                w, image_step, static_cast<const T*>(x), static_cast<T*>(columns));
  });
}

cudaError_t col2im(const WindowExtent& w, int64_t image_step, const void* columns, void* dx,
                   cudaStream_t stream) {
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    return over(w.images * w.channels * volume(w.in), stream, col2im_kernel<T>, w, image_step,
                static_cast<const T*>(columns), static_cast<T*>(dx));
  });
}

cudaError_t im2row(const WindowExtent& w, const void* x, void* columns, cudaStream_t stream) {
  const int64_t n = w.images * volume(w.out) * volume(w.kernel) * w.channels;
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = kPack<T>;
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(columns);
    return aligned16(w.channels, sizeof(T), from, to)
               ? over(n / V, stream, im2row_kernel<T, V>, w, from, to)
               : over(n, stream, im2row_kernel<T, 1>, w, from, to);
  });
}

cudaError_t row2im(const WindowExtent& w, const void* columns, void* dx, cudaStream_t stream) {
  const int64_t n = w.images * volume(w.in) * w.channels;
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = kPack<T>;
    const T* from = static_cast<const T*>(columns);
    T* to = static_cast<T*>(dx);
    return aligned16(w.channels, sizeof(T), from, to)
               ? over(n / V, stream, row2im_kernel<T, V>, w, from, to)
               : over(n, stream, row2im_kernel<T, 1>, w, from, to);
  });
}

}  // namespace ofsdp::cuda
