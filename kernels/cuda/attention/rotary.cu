// One thread per rotated pair or unrotated element.
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// Returns the row in the cos and sin caches, 0 after reporting an invalid position.
__device__ inline int64_t cache_row(const RotaryParams& e, int64_t row) {
  const int64_t sample = row / (e.heads * e.steps);
  const int64_t step = e.packed ? row / e.heads % e.steps : row % e.steps;
  int64_t at = sample * e.steps + step;
  if (e.positions != nullptr) at = e.count == 1 ? e.positions[0] + step : e.positions[at];
  if (at >= 0 && at < e.cache_rows) return at;
  note(e.fault, at, e.cache_rows);
  return 0;
}

template <typename T>
OFSDP_CUDA_KERNEL rotate_kernel(RotaryParams e, const T* x, const T* cos, const T* sin, T* y) {
  const int64_t half = e.dim / 2, items = e.width - half;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.batch * e.heads * e.steps * items) return;
  const int64_t row = i / items, item = i - row * items;
  const T* from = x + row * e.width;
  T* to = y + row * e.width;
  if (item >= half) {
    to[item + half] = from[item + half];
    return;
  }
  const int64_t at = cache_row(e, row) * half + item;
  const int64_t first = e.interleaved ? 2 * item : item;
  const int64_t second = e.interleaved ? first + 1 : item + half;
  const float a = to_float(from[first]), b = to_float(from[second]);
  const float c = to_float(cos[at]), s = to_float(sin[at]);
  to[first] = Stored<T>::from(a * c - b * s);
  to[second] = Stored<T>::from(a * s + b * c);
}

}  // namespace

cudaError_t rotate(const RotaryParams& e, const void* x, const void* cos, const void* sin, void* y,
                   cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    const int64_t items = e.batch * e.heads * e.steps * (e.width - e.dim / 2);
    return over(items, stream, rotate_kernel<T>, e, x, cos, sin, y);
  });
}

}  // namespace ofsdp::kernels::cuda
