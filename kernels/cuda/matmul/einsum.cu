// One thread per element of the result walks the summed labels. Only equations that are no
// batched product of two matrices come here, so simplicity counts more than reuse of operands.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/matmul/einsum.h"
#include "kernels/cuda/pointwise/walk.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kOfAThread = 8;  // summed combinations; more of them have a warp

template <typename T, int G>
OFSDP_CUDA_KERNEL einsum_kernel(EinsumExtent e, T* y) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const bool there = i < e.outer.numel;
  int64_t first[kMaxOperands], at[kMaxOperands];
  places<kMaxOperands>(e.outer, there ? i : 0, first);
  float sum = 0;
  for (int64_t j = there ? threadIdx.x % G : e.summed.numel; j < e.summed.numel; j += G) {
    places<kMaxOperands>(e.summed, j, at);
    float product = 1;
#pragma unroll
    for (int k = 1; k < kMaxOperands; ++k) {
      if (k > e.count) continue;
      product *= to_float(static_cast<const T*>(e.operands[k - 1])[first[k] + at[k]]);
    }
    sum += product;
  }
  if constexpr (G > 1) sum = warp_fold(sum, Add{});
  if (there && threadIdx.x % G == 0) y[first[0]] = Stored<T>::from(sum);
}

}  // namespace

cudaError_t einsum_loops(const EinsumExtent& e, void* y, cudaStream_t stream) {
  if (e.outer.rank < 0 || e.summed.rank < 0) return cudaErrorNotSupported;
  return with_float(e.dtype, [&]<typename T>(T) {
    return e.summed.numel > kOfAThread
               ? launch_blocks(stream, blocks_for(e.outer.numel, kThreads / kWarp), kThreads,
                               einsum_kernel<T, kWarp>, e, y)
               : over(e.outer.numel, stream, einsum_kernel<T, 1>, e, y);
  });
}

}  // namespace ofsdp::kernels::cuda
