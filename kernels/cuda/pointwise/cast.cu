// Cast: a thread converts four elements between float32, float16 and bfloat16, one element for all
// other pairs. The result dtype is a switch that is uniform over the kernel.
#include <limits>
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {
namespace {

// numeric_limits as constants: its constexpr functions are host code to nvcc.
template <typename T>
struct Range {
  static constexpr T max = std::numeric_limits<T>::max(), min = std::numeric_limits<T>::min();
};

template <typename To, typename From>
__device__ inline To convert(From from) {
  if constexpr (std::is_same_v<From, __half> || std::is_same_v<From, __nv_bfloat16>) {
    return convert<To>(to_float(from));
  } else if constexpr (std::is_same_v<To, __half> || std::is_same_v<To, __nv_bfloat16>) {
    return Stored<To>::from(static_cast<float>(from));
  } else if constexpr (std::is_same_v<To, bool>) {
    return from != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (from != from) return 0;
    if (from >= static_cast<From>(Range<To>::max)) return Range<To>::max;
    if (from <= static_cast<From>(Range<To>::min)) return Range<To>::min;
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

// Four elements per thread; the last thread takes the rest one by one.
template <typename From, typename To>
OFSDP_CUDA_KERNEL packs_kernel(const From* x, To* y, int64_t n) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (i >= n) return;
  if (i + 4 <= n) {
    float v[4];
    load<4>(x + i, v);
    return store<4>(y + i, v);
  }
  for (int64_t k = i; k < n; ++k) y[k] = Stored<To>::from(to_float(x[k]));
}

// Returns f(T{}) with the C++ type of `dtype`, or `otherwise` if there is none.
#define OFSDP_ANY_TYPE(dtype, f, otherwise)           \
  switch (dtype) {                                    \
    OFSDP_CASE(DType::kFloat32, f(float{}));          \
    OFSDP_CASE(DType::kFloat64, f(double{}));         \
    OFSDP_CASE(DType::kFloat16, f(__half{}));         \
    OFSDP_CASE(DType::kBFloat16, f(__nv_bfloat16{})); \
    OFSDP_CASE(DType::kInt8, f(int8_t{}));            \
    OFSDP_CASE(DType::kInt16, f(int16_t{}));          \
    OFSDP_CASE(DType::kInt32, f(int32_t{}));          \
    OFSDP_CASE(DType::kInt64, f(int64_t{}));          \
    OFSDP_CASE(DType::kUInt8, f(uint8_t{}));          \
    OFSDP_CASE(DType::kUInt16, f(uint16_t{}));        \
    OFSDP_CASE(DType::kUInt32, f(uint32_t{}));        \
    OFSDP_CASE(DType::kUInt64, f(uint64_t{}));        \
    OFSDP_CASE(DType::kBool, f(bool{}));              \
    default:                                          \
      return otherwise;                               \
  }

// A thread per element.
template <typename From>
OFSDP_CUDA_KERNEL any_kernel(const From* x, DType to, void* y, int64_t n) {
  OFSDP_CUDA_ITEM(i, n);
  const auto put = [&]<typename To>(To) { static_cast<To*>(y)[i] = convert<To>(x[i]); };
  OFSDP_ANY_TYPE(to, put, )
}

}  // namespace

cudaError_t cast(DType from, const void* x, DType to, void* y, int64_t numel, cudaStream_t stream) {
  if (to == DType::kUndefined) return cudaErrorNotSupported;
  if (aligned16(0, 1, x, y)) {
    const cudaError_t packed = with_float(from, [&]<typename From>(From) {
      return with_float(to, [&]<typename To>(To) {
        return over(blocks_for(numel, 4), stream, packs_kernel<From, To>, x, y, numel);
      });
    });
    if (packed != cudaErrorNotSupported) return packed;
  }
  const auto run = [&]<typename From>(From) {
    return over(numel, stream, any_kernel<From>, x, to, y, numel);
  };
  OFSDP_ANY_TYPE(from, run, cudaErrorNotSupported)
}

}  // namespace ofsdp::kernels::cuda
