#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/reduce/scan.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// What sums are kept in: whole numbers wrap.
template <typename T>
struct Running {
  using Type = Compute<T>;
  __device__ static Type read(T v) { return to_float(v); }
  __device__ static T write(Type v) { return Stored<T>::from(v); }
};
template <typename T>
struct WrappingRunning {
  using Type = std::make_unsigned_t<T>;
  __device__ static Type read(T v) { return static_cast<Type>(v); }
  __device__ static T write(Type v) { return static_cast<T>(v); }
};
template <>
struct Running<int32_t> : WrappingRunning<int32_t> {};
template <>
struct Running<int64_t> : WrappingRunning<int64_t> {};

template <typename T>
__global__ void __launch_bounds__(kThreads) sum_kernel(ScanExtent e, const T* x, T* y) {
  const int64_t line = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (line >= e.outer * e.inner) return;
  const int64_t first = line / e.inner * e.n * e.inner + line % e.inner;
  typename Running<T>::Type sum = e.product ? 1 : 0;
  for (int64_t k = 0; k < e.n; ++k) {
    const int64_t at = first + (e.reverse ? e.n - 1 - k : k) * e.inner;
    const typename Running<T>::Type read = Running<T>::read(x[at]);
    const auto next = e.product ? sum * read : sum + read;
    y[at] = Running<T>::write(e.exclusive ? sum : next);
    sum = next;
  }
}

}  // namespace

bool has_running_sum(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         dtype == DType::kInt32 || dtype == DType::kInt64;
}

cudaError_t running_sum(const ScanExtent& e, const void* x, void* y, cudaStream_t stream) {
  const auto run = [&](auto t) {
    using T = decltype(t);
    return launch_blocks(stream, blocks_for(e.outer * e.inner, kThreads), kThreads, sum_kernel<T>,
                         e, static_cast<const T*>(x), static_cast<T*>(y));
  };
  if (e.dtype == DType::kInt32) return run(int32_t{});
  if (e.dtype == DType::kInt64) return run(int64_t{});
  return with_float(e.dtype, run);
}

}  // namespace ofsdp::kernels::cuda
