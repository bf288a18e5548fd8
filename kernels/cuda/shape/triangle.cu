#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/shape/triangle.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// V elements of a row a thread.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) triangle_kernel(TriangleExtent e, const T* x, T* y) {
  const int64_t packs = e.columns / V;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.matrices * e.rows * packs) return;
  const int64_t row = i / packs, first = (i - row * packs) * V, edge = row % e.rows + e.k;
  const bool some = e.upper ? first + V > edge : first <= edge;
  Pack<T, V> pack{};
  if (some) pack = reinterpret_cast<const Pack<T, V>*>(x)[i];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int64_t column = first + v;
    if (e.upper ? column < edge : column > edge) pack.v[v] = T{};
  }
  reinterpret_cast<Pack<T, V>*>(y)[i] = pack;
}

template <typename T, int V>
cudaError_t triangle_as(const TriangleExtent& e, const void* x, void* y, cudaStream_t stream) {
  return launch_blocks(stream, blocks_for(e.matrices * e.rows * (e.columns / V), kThreads),
                       kThreads, triangle_kernel<T, V>, e, static_cast<const T*>(x),
                       static_cast<T*>(y));
}

template <typename Index, typename T>
__global__ void __launch_bounds__(kThreads)
    one_hot_kernel(OneHotExtent e, const Index* indices, const T* values, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= e.outer * e.depth * e.inner) return;
  const int64_t rest = i / e.inner, j = i - rest * e.inner, o = rest / e.depth,
                k = rest - o * e.depth;
  const auto index = static_cast<int64_t>(indices[o * e.inner + j]);
  y[i] = values[k == index || k == index + e.depth ? 1 : 0];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    keep_kernel(int64_t n, int64_t inner, int64_t all, int64_t factor, const int64_t* count,
                const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < all) y[i] = i / inner % n < factor * *count ? x[i] : T{};
}

}  // namespace

cudaError_t triangle(const TriangleExtent& e, size_t size, const void* x, void* y,
                     cudaStream_t stream) {
  return with_bits(size, [&](auto t) {
    using T = decltype(t);
    return aligned16(e.columns, size, x, y) ? triangle_as<T, kPack<T>>(e, x, y, stream)
                                            : triangle_as<T, 1>(e, x, y, stream);
  });
}

bool has_one_hot(DType index_dtype) {
  return index_dtype == DType::kInt64 || index_dtype == DType::kInt32 ||
         index_dtype == DType::kFloat32;
}

cudaError_t one_hot(const OneHotExtent& e, size_t size, const void* indices, const void* values,
                    void* y, cudaStream_t stream) {
  const auto run = [&](auto index) {
    using Index = decltype(index);
    return with_bits(size, [&](auto t) {
      using T = decltype(t);
      return launch_blocks(stream, blocks_for(e.outer * e.depth * e.inner, kThreads), kThreads,
                           one_hot_kernel<Index, T>, e, static_cast<const Index*>(indices),
                           static_cast<const T*>(values), static_cast<T*>(y));
    });
  };
  if (e.index_dtype == DType::kInt32) return run(int32_t{});
  return e.index_dtype == DType::kInt64 ? run(int64_t{}) : run(float{});
}

cudaError_t keep_counted(int64_t outer, int64_t n, int64_t inner, int64_t factor,
                         const int64_t* count, size_t size, const void* x, void* y,
                         cudaStream_t stream) {
  const int64_t all = outer * n * inner;
  return with_bits(size, [&](auto t) {
    using T = decltype(t);
    return launch_blocks(stream, blocks_for(all, kThreads), kThreads, keep_kernel<T>, n, inner, all,
                         factor, count, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

}  // namespace ofsdp::kernels::cuda
