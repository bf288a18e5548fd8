// Helpers that arithmetic.cu and optimizers.cu share: grid-stride loops and gradients on their way.
#pragma once

#include "kernels/core/device_values.h"
#include "kernels/cuda/device/device.cuh"

#define OFSDP_CUDA_LOOP(i, n)                                                            \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

namespace ofsdp::kernels::cuda {

// kernel(arguments...) over n elements; its loop strides, so that this many blocks are enough for
// every card.
template <typename K, typename... A>
cudaError_t strided_launch(int64_t n, cudaStream_t stream, K kernel, A... arguments) {
  constexpr int64_t kMost = 132 * 16;
  return launch_blocks(stream, std::clamp<int64_t>(blocks_for(n, 256), 1, kMost), 256, kernel,
                       arguments...);
}

__device__ inline float rounded(float v, int32_t dtype) {
  if (dtype == static_cast<int32_t>(DType::kBFloat16)) {
    return to_float(Stored<__nv_bfloat16>::from(v));
  }
  if (dtype == static_cast<int32_t>(DType::kFloat16)) return to_float(Stored<__half>::from(v));
  return v;
}

// A gradient as the update takes it: rounded to the dtype that ranks reduce in, onto the earlier
// sum.
template <typename From>
__device__ float gradient_at(const ofsdp_gradient& g, int64_t i) {
  const float value = rounded(to_float(static_cast<const From*>(g.src)[i]), g.reduce_dtype);
  return g.onto == nullptr ? value : value + g.onto[i];
}

}  // namespace ofsdp::kernels::cuda
