// Building blocks for kernels: dtype conversion and dispatch, 16-byte packs, reductions over a warp
// or block, data checks, launches.
//
// [Note: kernels without a GPU] tests/emulator compiles these sources for the CPU. Therefore
// kernels start through `launch`, shared memory is static, and all lanes take part in every
// shuffle.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kThreads = 256;  // default block size
#define OFSDP_CUDA_KERNEL __global__ void __launch_bounds__(::ofsdp::kernels::cuda::kThreads)

// Begins a kernel that the function over() launches: declares `i`, the global thread index, and
// returns from threads with i >= n. After it a kernel must not shuffle, since lanes may be missing.
#define OFSDP_CUDA_ITEM(i, n)                                                             \
  const int64_t i = int64_t{blockIdx.x} * ::ofsdp::kernels::cuda::kThreads + threadIdx.x; \
  if (i >= (n)) return

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int64_t kMaxBlocks = int64_t{1} << 30;

// --- conversions ---
__host__ __device__ inline float to_float(float v) { return v; }
__host__ __device__ inline double to_float(double v) { return v; }
__host__ __device__ inline float to_float(__half v) { return __half2float(v); }
__host__ __device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T>
requires std::is_integral_v<T> __host__ __device__ inline T to_float(
    T v) {  // integers stay unchanged
  return v;
}

template <typename T>
struct Stored {  // converts from the type used for computing
  using Compute = T;
  __host__ __device__ static T from(T v) { return v; }
};
template <>
struct Stored<__half> {
  using Compute = float;
  __host__ __device__ static __half from(float v) { return __float2half_rn(v); }
};
template <>
struct Stored<__nv_bfloat16> {
  using Compute = float;
  __host__ __device__ static __nv_bfloat16 from(float v) { return __float2bfloat16_rn(v); }
};
template <typename T>
using Compute = typename Stored<T>::Compute;

// Addition and multiplication with integer wraparound.
template <typename V>
__device__ inline V sum_of(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    using U = std::make_unsigned_t<V>;
    return static_cast<V>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <typename V>
__device__ inline V product_of(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    using U = std::make_unsigned_t<V>;
    return static_cast<V>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

// Unrolls f(0) .. f(N - 1).
template <int N, typename F>
__device__ inline void unrolled(const F& f) {
#pragma unroll
  for (int k = 0; k < N; ++k) f(k);
}

// --- packs: N elements in one access. REQUIRES: the address is a multiple of the pack size. ---
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <typename T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

template <int N, typename T>
__device__ inline void unpack(const Pack<T, N>& pack, Compute<T>* to) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {  // one instruction per element
    uint32_t words[N / 2];
    memcpy(words, &pack, sizeof(pack));
    unrolled<N / 2>([&](int k) {
      to[2 * k] = __uint_as_float(words[k] << 16);
      to[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
    });
  } else {
    unrolled<N>([&](int k) { to[k] = to_float(pack.v[k]); });
  }
}
template <int N, typename T>
__device__ inline void load(const T* from, Compute<T>* to) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);  // one vector load
  unpack(pack, to);
}
// [Note: wide stores] nvcc splits a plain pack store into elements if the computation of the
// elements is inlined next to it: seven 2-byte stores instead of one 16-byte store. This store
// stays whole. Global memory only.
template <typename T, int N>
__device__ inline void store_pack(T* to, const Pack<T, N>& pack) {
  const auto as = [&]<typename W>(W word) {
    memcpy(&word, &pack, sizeof(word));
    __stwb(reinterpret_cast<W*>(to), word);
  };
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    as(uint4{});
  } else if constexpr (sizeof(pack) == sizeof(uint2) && N > 1) {
    as(uint2{});
  } else {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  }
}
template <int N, typename T>
__device__ inline void store(T* to, const Compute<T>* from) {
  Pack<T, N> p;
#pragma unroll
  for (int i = 0; i < N; ++i) p.v[i] = Stored<T>::from(from[i]);
  store_pack(to, p);
}

// Returns true if rows of `width` elements, `size` bytes each, allow 16-byte packs at all these
// addresses.
template <typename... P>
bool aligned16(int64_t width, size_t size, const P*... pointers) {
  const bool even = width * static_cast<int64_t>(size) % 16 == 0;
  return even && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// --- reductions over a group of threads; every thread gets the result ---
struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {  // propagates NaN
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
#ifdef __CUDA_ARCH__
  __device__ float operator()(float a, float b) const {  // one instruction instead of four
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
  }
#endif
};

template <typename T, typename F>
__device__ inline T warp_reduce(T v, F f) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

// Reduces over G threads. REQUIRES: G is kWarp or the block size, and all G threads call. `spare`:
// shared memory for G / kWarp values.
template <int G, typename T, typename F>
__device__ inline T group_reduce(T v, F f, T* spare) {
  v = warp_reduce(v, f);
  if constexpr (G > kWarp) {
    __syncthreads();  // the previous call may still read spare
    if (threadIdx.x % kWarp == 0) spare[threadIdx.x / kWarp] = v;
    __syncthreads();
    v = spare[0];
    for (int w = 1; w < G / kWarp; ++w) v = f(v, spare[w]);
  }
  return v;
}

// --- data out of range --- Reports invalid data: stores node, value and extent in the fault's
// record unless an earlier report is stored there. The thread that wins the atomicCAS on `node`
// writes the other two.
__device__ inline void note(Fault fault, int64_t value, int64_t extent) {
  if (fault.record == nullptr) return;
  auto* node = reinterpret_cast<unsigned long long*>(&fault.record->node);
  if (*static_cast<volatile unsigned long long*>(node) != 0) return;
  if (atomicCAS(node, 0ull, static_cast<unsigned long long>(fault.node)) != 0) return;
  fault.record->value = value;
  fault.record->extent = extent;
}
// Returns an index in 0 .. n - 1. A negative one counts from the end; if the result is out of
// range, reports the fault and returns 0.
__device__ inline int64_t wrapped(int64_t given, int64_t n, Fault fault) {
  const int64_t at = given < 0 ? given + n : given;
  if (at >= 0 && at < n) return at;
  note(fault, given, n);
  return 0;
}

// --- rows gathered from all ranks (GatheredRows in types.h) ---
// Returns the row count that a rank's header holds, clamped to 0 .. most, so that a header with NaN
// or garbage leads to no access outside of the rank's part.
__device__ inline int64_t rows_of(const GatheredRows& r, int64_t rank) {
  if (r.header == 0) return r.most;
  const float count = r.data[rank * r.part], most = static_cast<float>(r.most);
  return count > 0 ? static_cast<int64_t>(count < most ? count : most) : 0;
}

__device__ inline const float* row_of(const GatheredRows& r, int64_t rank, int64_t i = 0) {
  return r.data + rank * r.part + r.header + i * r.width;
}

// --- launches ---
inline int64_t blocks_for(int64_t n, int64_t per_block) { return (n + per_block - 1) / per_block; }

template <typename... P, typename... A>
cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(P...),
                   A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

template <typename... P, typename... A>
cudaError_t launch_blocks(cudaStream_t stream, int64_t blocks, int threads, void (*kernel)(P...),
                          A... arguments) {
  if (blocks <= 0) return cudaSuccess;
  if (blocks > kMaxBlocks) return cudaErrorNotSupported;
  return launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                kernel, arguments...);
}

// Launches one thread per item, kThreads per block. The arguments are cast to the kernel's
// parameter types, so void pointers may be passed.
template <typename... P, typename... A>
cudaError_t over(int64_t n, cudaStream_t stream, void (*kernel)(P...), A... arguments) {
  return launch_blocks(stream, blocks_for(n, kThreads), kThreads, kernel, arguments...);
}

// If `packs`, launches `wide` with one thread per pack of V elements; otherwise `single` with one
// thread per element. REQUIRES: if `packs`, n is a multiple of V.
template <int V, typename... P, typename... A>
cudaError_t launch_over_packs(bool packs, int64_t n, cudaStream_t stream, void (*wide)(P...),
                              void (*single)(P...), A... arguments) {
  return over(packs ? blocks_for(n, V) : n, stream, packs ? wide : single, arguments...);
}

// Returns f(T{}) for float32, float16 and bfloat16, cudaErrorNotSupported for others.
template <typename F>
cudaError_t with_float(DType dtype, const F& f) {
  switch (dtype) {
    OFSDP_CASE(DType::kFloat32, f(float{}));
    OFSDP_CASE(DType::kFloat16, f(__half{}));
    OFSDP_CASE(DType::kBFloat16, f(__nv_bfloat16{}));
    default:
      return cudaErrorNotSupported;
  }
}

// As with_float, and also float64, int32 and int64.
template <typename F>
cudaError_t with_number(DType dtype, const F& f) {
  if (dtype == DType::kInt32) return f(int32_t{});
  if (dtype == DType::kInt64) return f(int64_t{});
  return dtype == DType::kFloat64 ? f(double{}) : with_float(dtype, f);
}

// Returns true if with_number supports the dtype.
inline bool is_number(DType dtype) {
  return with_number(dtype, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

// Returns f(T{}) for the unsigned integer type T with `size` bytes.
template <typename F>
cudaError_t with_whole(size_t size, const F& f) {
  switch (size) {
    OFSDP_CASE(1, f(uint8_t{}));
    OFSDP_CASE(2, f(uint16_t{}));
    OFSDP_CASE(4, f(uint32_t{}));
    OFSDP_CASE(8, f(uint64_t{}));
    default:
      return cudaErrorNotSupported;
  }
}

// Returns f(T{}) for a type T with `size` bytes (up to 16), for kernels that only move elements.
struct alignas(16) Sixteen {
  uint64_t low, high;
};
template <typename F>
cudaError_t with_bits(size_t size, const F& f) {
  return size == sizeof(Sixteen) ? f(Sixteen{}) : with_whole(size, f);
}

// Returns the widest access, up to 16 bytes, that divides `bytes` and both addresses.
inline size_t widest(size_t bytes, const void* a, const void* b) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | bytes;
  size_t size = 16;
  while (all % size != 0) size /= 2;
  return size;
}

}  // namespace ofsdp::kernels::cuda
