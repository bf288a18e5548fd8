// Shared by arithmetic.cu and optimizers.cu: element types as float, grid-stride loops, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device/handles.h"

#define OFSDP_CUDA_LOOP(i, n)                                                            \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

namespace ofsdp::kernels::cuda {

inline constexpr int kThreads = 256;

inline unsigned blocks(int64_t n) {
  constexpr int64_t kMost = 132 * 16;  // enough for every card; the loops stride
  return static_cast<unsigned>(std::clamp<int64_t>((n + kThreads - 1) / kThreads, 1, kMost));
}

__device__ inline float widen(float v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T>
__device__ T narrow(float v);
template <>
__device__ inline float narrow<float>(float v) {
  return v;
}
template <>
__device__ inline __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

__device__ inline float rounded(float v, int32_t dtype) {
  if (dtype == static_cast<int32_t>(DType::kBFloat16)) return widen(narrow<__nv_bfloat16>(v));
  if (dtype == static_cast<int32_t>(DType::kFloat16)) return widen(narrow<__half>(v));
  return v;
}

// A gradient as the update takes it: rounded to what ranks reduce in, onto what was before.
template <typename From>
__device__ float gradient_at(const ofsdp_gradient& g, int64_t i) {
  const float value = rounded(widen(static_cast<const From*>(g.src)[i]), g.reduce_dtype);
  return g.onto == nullptr ? value : value + g.onto[i];
}

// f(T{}) for the C++ type of a float dtype; false when it is none of the three.
template <typename F>
bool with_float_type(int32_t dtype, const F& f) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat32:
      f(float{});
      return true;
    case DType::kFloat16:
      f(__half{});
      return true;
    case DType::kBFloat16:
      f(__nv_bfloat16{});
      return true;
    default:
      return false;
  }
}

inline int32_t launched(ofsdp_device* device, const char* what) {
  return failed(device, cudaGetLastError(), what);
}
inline int32_t unknown_type(ofsdp_device* device, const char* what) {
  return failed(device, cudaErrorInvalidValue, what);
}

}  // namespace ofsdp::kernels::cuda
