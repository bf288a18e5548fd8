#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/sequence.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline int64_t checked(int64_t value, int64_t most, Fault fault) {
  if (value >= 0 && value <= most) return value;
  note(fault, value, most);
  return 0;
}

// `width` elements of T a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    reverse_kernel(ReverseExtent e, int64_t width, const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.steps * e.batch * width) return;
  const int64_t row = i / width;
  const int64_t t = e.time_first ? row / e.batch : row % e.steps,
                b = e.time_first ? row % e.batch : row / e.steps;
  const int64_t length = checked(e.lengths[b], e.steps, e.fault);
  const int64_t from = t < length ? length - 1 - t : t;
  y[i] = x[(e.time_first ? from * e.batch + b : b * e.steps + from) * width + (i - row * width)];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    cache_kernel(CacheExtent e, int64_t width, const T* update, T* cache) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.outer * e.n * width) return;
  const int64_t row = i / width, o = row / e.n;
  int64_t first = 0;
  if (e.first != nullptr) {
    first = checked(e.first[o / e.per_batch], e.circular ? INT64_MAX : e.size - e.n, e.fault);
  }
  const int64_t to = (first % e.size + (row - o * e.n)) % e.size;
  cache[(o * e.size + to) * width + (i - row * width)] = update[i];
}

}  // namespace

cudaError_t reverse_sequence(const ReverseExtent& e, const void* x, void* y, cudaStream_t stream) {
  return with_bits(widest(static_cast<size_t>(e.bytes), x, y), [&](auto t) {
    using T = decltype(t);
    const int64_t width = e.bytes / static_cast<int64_t>(sizeof(T));
    return launch_blocks(stream, blocks_for(e.steps * e.batch * width, kThreads), kThreads,
                         reverse_kernel<T>, e, width, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t write_cache(const CacheExtent& e, const void* update, void* cache,
                        cudaStream_t stream) {
  return with_bits(widest(static_cast<size_t>(e.bytes), update, cache), [&](auto t) {
    using T = decltype(t);
    const int64_t width = e.bytes / static_cast<int64_t>(sizeof(T));
    return launch_blocks(stream, blocks_for(e.outer * e.n * width, kThreads), kThreads,
                         cache_kernel<T>, e, width, static_cast<const T*>(update),
                         static_cast<T*>(cache));
  });
}

}  // namespace ofsdp::kernels::cuda
