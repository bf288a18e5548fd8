#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pool/lp_pool.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__host__ __device__ inline int64_t volume(const int64_t* axes) {
  return axes[0] * axes[1] * axes[2];
}

struct Place {
  int64_t plane, at[3];
};
__device__ inline Place place_of(int64_t i, const int64_t* axes) {
  Place p{};
  for (int a = 2; a >= 0; --a) {
    p.at[a] = i % axes[a];
    i /= axes[a];
  }
  p.plane = i;
  return p;
}

// f(three taps) for all of the window, the last axis fastest.
template <typename F>
__device__ inline void for_taps(const WindowExtent& w, const F& f) {
  for (int64_t a = 0; a < w.kernel[0]; ++a) {
    for (int64_t b = 0; b < w.kernel[1]; ++b) {
      for (int64_t c = 0; c < w.kernel[2]; ++c) {
        const int64_t tap[3] = {a, b, c};
        f(tap);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(WindowExtent w, int64_t p, const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * volume(w.out)) return;
  const Place o = place_of(i, w.out);
  float sum = 0;
  for_taps(w, [&](const int64_t* tap) {
    int64_t from = o.plane;
    for (int a = 0; a < 3; ++a) {
      const int64_t at = o.at[a] * w.strides[a] - w.pads_begin[a] + tap[a] * w.dilations[a];
      if (at < 0 || at >= w.in[a]) return;
      from = from * w.in[a] + at;
    }
    const float v = fabsf(to_float(x[from]));
    sum += p == 2 ? v * v : p == 1 ? v : powf(v, static_cast<float>(p));
  });
  y[i] = Stored<T>::from(p == 2   ? sqrtf(sum)
                         : p == 1 ? sum
                                  : powf(sum, 1.0f / static_cast<float>(p)));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    grad_kernel(WindowExtent w, int64_t p, const T* dy, const T* x, const T* y, T* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.images * w.channels * volume(w.in)) return;
  const Place in = place_of(i, w.in);
  const float v = to_float(x[i]);
  float sum = 0;
  for_taps(w, [&](const int64_t* tap) {
    int64_t to = in.plane;
    for (int a = 0; a < 3; ++a) {
      const int64_t at = in.at[a] + w.pads_begin[a] - tap[a] * w.dilations[a];
      if (at < 0 || at % w.strides[a] != 0 || at / w.strides[a] >= w.out[a]) return;
      to = to * w.out[a] + at / w.strides[a];
    }
    const float made = to_float(y[to]);
    if (made == 0 || v == 0) return;
    sum += to_float(dy[to]) * copysignf(powf(fabsf(v) / made, static_cast<float>(p - 1)), v);
  });
  dx[i] = Stored<T>::from(sum);
}

}  // namespace

cudaError_t lp_pool(const WindowExtent& w, int64_t p, const void* x, void* y, cudaStream_t stream) {
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_blocks(stream, blocks_for(w.images * w.channels * volume(w.out), kThreads),
                         kThreads, forward_kernel<T>, w, p, static_cast<const T*>(x),
                         static_cast<T*>(y));
  });
}

cudaError_t lp_pool_grad(const WindowExtent& w, int64_t p, const void* dy, const void* x,
                         const void* y, void* dx, cudaStream_t stream) {
  return with_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_blocks(stream, blocks_for(w.images * w.channels * volume(w.in), kThreads),
                         kThreads, grad_kernel<T>, w, p, static_cast<const T*>(dy),
                         static_cast<const T*>(x), static_cast<const T*>(y), static_cast<T*>(dx));
  });
}

}  // namespace ofsdp::kernels::cuda
