// Where the elements lie that indices name: GatherElements, and the rows of scatters (scatter.cu).
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/scatter.h"
#include "kernels/cuda/pointwise/walk.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Index>
__device__ inline int64_t element_of(const ElementExtent& e, int64_t i) {
  int64_t at[1];
  places<1>(e.walk, i, at);
  return at[0] + wrapped(static_cast<const Index*>(e.indices)[i], e.n, e.fault) * e.step;
}

template <typename Index, typename T>
__global__ void __launch_bounds__(kThreads) gather_kernel(ElementExtent e, const T* data, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < e.walk.numel) y[i] = data[element_of<Index>(e, i)];
}

template <typename Index>
__global__ void __launch_bounds__(kThreads) rows_kernel(ElementExtent e, int64_t* rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < e.walk.numel) rows[i] = element_of<Index>(e, i);
}

__global__ void __launch_bounds__(kThreads)
    moved_kernel(Walk walk, const int64_t* indices, int64_t count, Fault fault, int64_t* rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t index = indices[i], most = walk.numel;
  if (index < 0 || index >= most) note(fault, index, most);
  int64_t at[1];
  places<1>(walk, index < 0 || index >= most ? 0 : index, at);
  rows[i] = at[0];
}

template <typename F>
cudaError_t with_index(DType dtype, const F& f) {
  return dtype == DType::kInt32 ? f(int32_t{}) : f(int64_t{});
}

}  // namespace

cudaError_t gather_elements(const ElementExtent& e, size_t size, const void* data, void* y,
                            cudaStream_t stream) {
  return with_index(e.index_dtype, [&](auto index) {
    return with_bits(size, [&](auto t) {
      using T = decltype(t);
      return launch_blocks(stream, blocks_for(e.walk.numel, kThreads), kThreads,
                           gather_kernel<decltype(index), T>, e, static_cast<const T*>(data),
                           static_cast<T*>(y));
    });
  });
}

cudaError_t element_rows(const ElementExtent& e, int64_t* rows, cudaStream_t stream) {
  return with_index(e.index_dtype, [&](auto index) {
    return launch_blocks(stream, blocks_for(e.walk.numel, kThreads), kThreads,
                         rows_kernel<decltype(index)>, e, rows);
  });
}

cudaError_t moved_rows(const Walk& walk, const int64_t* indices, int64_t count, Fault fault,
                       int64_t* rows, cudaStream_t stream) {
  return launch_blocks(stream, blocks_for(count, kThreads), kThreads, moved_kernel, walk, indices,
                       count, fault, rows);
}

}  // namespace ofsdp::kernels::cuda
