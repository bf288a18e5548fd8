// A thread computes one element from the channels in the window, which its neighbours share in the
// cache. The gradient recomputes the window sums: size^2 reads, no scratch.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/norm/norm.h"

namespace ofsdp::kernels::cuda {
namespace {

// bias + alpha * sum of squares in the window around channel c; x points at channel 0.
template <typename T>
__device__ inline float window_sum(const LrnParams& e, const T* x, int64_t c) {
  const int64_t first = c > e.before ? c - e.before : 0,
                last = c + e.after < e.channels ? c + e.after : e.channels - 1;
  float sum = 0;
  for (int64_t k = first; k <= last; ++k) {
    const float v = to_float(x[k * e.inner]);
    sum += v * v;
  }
  return e.bias + e.alpha * sum;
}

// A thread per y element.
template <typename T>
OFSDP_CUDA_KERNEL lrn_kernel(LrnParams e, const T* x, T* y) {
  OFSDP_CUDA_ITEM(i, e.batch * e.channels * e.inner);
  const int64_t c = i / e.inner % e.channels;
  const float s = window_sum(e, x + (i - c * e.inner), c);
  y[i] = Stored<T>::from(to_float(x[i]) * powf(s, -e.beta));
}

// The windows of channels c - after .. c + before contain channel c.
template <typename T>
OFSDP_CUDA_KERNEL grad_kernel(LrnParams e, const T* dy, const T* x, T* dx) {
  OFSDP_CUDA_ITEM(i, e.batch * e.channels * e.inner);
  const int64_t c = i / e.inner % e.channels, base = i - c * e.inner;
  const int64_t first = c > e.after ? c - e.after : 0,
                last = c + e.before < e.channels ? c + e.before : e.channels - 1;
  float through = 0, direct = 0;
  for (int64_t k = first; k <= last; ++k) {
    const float s = window_sum(e, x + base, k), power = powf(s, -e.beta);
    const float d = to_float(dy[base + k * e.inner]);
    if (k == c) direct = d * power;
    through += d * to_float(x[base + k * e.inner]) * (power / s);
  }
  dx[i] = Stored<T>::from(direct - 2.0f * e.alpha * e.beta * to_float(x[i]) * through);
}

}  // namespace

cudaError_t lrn(const LrnParams& e, const void* x, void* y, cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return over(e.batch * e.channels * e.inner, stream, lrn_kernel<T>, e, x, y);
  });
}

cudaError_t lrn_grad(const LrnParams& e, const void* dy, const void* x, void* dx,
                     cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return over(e.batch * e.channels * e.inner, stream, grad_kernel<T>, e, dy, x, dx);
  });
}

}  // namespace ofsdp::kernels::cuda
