// Cast: between the stored floats in packs of four; all other pairs one by one, the type of the result by a switch that all
// threads take alike.
#include <limits>
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// numeric_limits without constexpr functions of the host.
template <typename T>
struct Range {
  static constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::min();
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
    if (from >= static_cast<From>(Range<To>::most)) return Range<To>::most;
    if (from <= static_cast<From>(Range<To>::least)) return Range<To>::least;
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) packs_kernel(const From* x, To* y, int64_t n) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (i >= n) return;
  if (i + 4 <= n) {
    float v[4];
    load<4>(x + i, v);
    return store<4>(y + i, v);
  }
  for (int64_t k = i; k < n; ++k) y[k] = Stored<To>::from(to_float(x[k]));
}

template <typename To, typename From>
__device__ inline void put(void* y, int64_t i, From v) {
  static_cast<To*>(y)[i] = convert<To>(v);
}

template <typename From>
__global__ void __launch_bounds__(kThreads)
    any_kernel(const From* x, DType to, void* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const From v = x[i];
  switch (to) {
    case DType::kFloat32:
      return put<float>(y, i, v);
    case DType::kFloat64:
      return put<double>(y, i, v);
    case DType::kFloat16:
      return put<__half>(y, i, v);
    case DType::kBFloat16:
      return put<__nv_bfloat16>(y, i, v);
    case DType::kInt8:
      return put<int8_t>(y, i, v);
    case DType::kInt16:
      return put<int16_t>(y, i, v);
    case DType::kInt32:
      return put<int32_t>(y, i, v);
    case DType::kInt64:
      return put<int64_t>(y, i, v);
    case DType::kUInt8:
      return put<uint8_t>(y, i, v);
    case DType::kUInt16:
      return put<uint16_t>(y, i, v);
    case DType::kUInt32:
      return put<uint32_t>(y, i, v);
    case DType::kUInt64:
      return put<uint64_t>(y, i, v);
    case DType::kBool:
      return put<bool>(y, i, v);
    default:
      return;
  }
}

template <typename From>
cudaError_t any(const void* x, DType to, void* y, int64_t n, cudaStream_t stream) {
  return launch_blocks(stream, blocks_for(n, kThreads), kThreads, any_kernel<From>,
                       static_cast<const From*>(x), to, y, n);
}

cudaError_t any_of(DType from, const void* x, DType to, void* y, int64_t n, cudaStream_t stream) {
  switch (from) {
    case DType::kFloat32:
      return any<float>(x, to, y, n, stream);
    case DType::kFloat64:
      return any<double>(x, to, y, n, stream);
    case DType::kFloat16:
      return any<__half>(x, to, y, n, stream);
    case DType::kBFloat16:
      return any<__nv_bfloat16>(x, to, y, n, stream);
    case DType::kInt8:
      return any<int8_t>(x, to, y, n, stream);
    case DType::kInt16:
      return any<int16_t>(x, to, y, n, stream);
    case DType::kInt32:
      return any<int32_t>(x, to, y, n, stream);
    case DType::kInt64:
      return any<int64_t>(x, to, y, n, stream);
    case DType::kUInt8:
      return any<uint8_t>(x, to, y, n, stream);
    case DType::kUInt16:
      return any<uint16_t>(x, to, y, n, stream);
    case DType::kUInt32:
      return any<uint32_t>(x, to, y, n, stream);
    case DType::kUInt64:
      return any<uint64_t>(x, to, y, n, stream);
    case DType::kBool:
      return any<bool>(x, to, y, n, stream);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace

cudaError_t cast(DType from, const void* x, DType to, void* y, int64_t numel, cudaStream_t stream) {
  if (to == DType::kUndefined) return cudaErrorNotSupported;
  if (aligned16(0, 1, x, y)) {
    const cudaError_t packed = with_float(from, [&](auto f) {
      return with_float(to, [&](auto t) {
        using From = decltype(f);
        using To = decltype(t);
        return launch_blocks(stream, blocks_for(numel, 4 * kThreads), kThreads,
                             packs_kernel<From, To>, static_cast<const From*>(x),
                             static_cast<To*>(y), numel);
      });
    });
    if (packed != cudaErrorNotSupported) return packed;
  }
  return any_of(from, x, to, y, numel, stream);
}

}  // namespace ofsdp::kernels::cuda
