// Small k: scan each line k times, without memory. Large k: sort all lines at once, with the line
// number in the high half of the key. Both order ties and NaN as the CPU does.
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/selection.h"
#include "kernels/cuda/indexing/sort.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kMaxWalks = 8, kMaxWalked = 1 << 14;  // limits for scanning: k, or n * k

// Returns true if (v, i) ranks before (w, j).
template <typename V>
__device__ inline bool ranks_before(const TopParams& e, V v, int64_t i, V w, int64_t j) {
  const bool order = e.last ? i > j : i < j, nan = v != v, other = w != w;
  if (nan || other) return nan && other ? order : nan == (e.largest || e.nan_first);
  if (v == w) return order;
  return e.largest ? v > w : v < w;
}

template <typename V>
struct Best {
  V value;
  int64_t index;  // -1: none
};

// G lanes per line. In round r each lane scans for the best element that ranks after the winner of
// round r - 1; a shuffle reduction finds the line's winner.
template <typename T, int G>
OFSDP_CUDA_KERNEL walk_kernel(TopParams e, const T* x, T* y, int64_t* indices) {
  using V = Compute<T>;
  const int64_t line = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const int lane = static_cast<int>(threadIdx.x) % G;
  const bool there = line < e.outer * e.inner;
  const int64_t o = there ? line / e.inner : 0, j = there ? line - o * e.inner : 0;
  const T* const from = x + o * e.n * e.inner + j;
  Best<V> before{V{}, -1};
  for (int64_t r = 0; r < e.k; ++r) {
    Best<V> best{V{}, -1};
    for (int64_t i = there ? lane : e.n; i < e.n; i += G) {
      const V v = to_float(from[i * e.inner]);
      if (r > 0 && !ranks_before(e, before.value, before.index, v, i)) continue;
      if (best.index < 0 || ranks_before(e, v, i, best.value, best.index)) best = {v, i};
    }
#pragma unroll
    for (int step = G / 2; step > 0; step /= 2) {
      const V v = __shfl_xor_sync(kAllLanes, best.value, step);
      const int64_t i = __shfl_xor_sync(kAllLanes, best.index, step);
      if (i >= 0 && (best.index < 0 || ranks_before(e, v, i, best.value, best.index)))
        best = {v, i};
    }
    before = best;
    if (!there || lane != 0) continue;
    const int64_t to = (o * e.k + r) * e.inner + j;
    if (indices != nullptr) indices[to] = best.index;
    if (y != nullptr) y[to] = from[best.index * e.inner];
  }
}

// Maps values to unsigned integers in the same order. Zeros are equal, NaN is largest.
template <typename T>
__device__ inline uint32_t ordered(T v) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(v) ^ 0x80000000u;
  } else {
    const float f = static_cast<float>(to_float(v));
    if (f != f) return 0xffffffffu;
    const uint32_t bits = f == 0.0f ? 0u : __float_as_uint(f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  }
}

// Key = line number, then the value in ascending rank.
template <typename T>
OFSDP_CUDA_KERNEL top_keys_kernel(TopParams e, const T* x, uint64_t* keys) {
  OFSDP_CUDA_ITEM(i, e.outer * e.inner * e.n);
  const int64_t line = i / e.n, k = i - line * e.n, o = line / e.inner, j = line - o * e.inner;
  const uint32_t bits = ordered(x[(o * e.n + k) * e.inner + j]);
  keys[i] = static_cast<uint64_t>(line) << 32 | (e.largest ? ~bits : bits);
}

// One thread per result: position in the sorted line minus the line's start gives the index.
template <typename T>
OFSDP_CUDA_KERNEL take_kernel(TopParams e, const uint32_t* sorted, const T* x, T* y,
                              int64_t* indices) {
  OFSDP_CUDA_ITEM(i, e.outer * e.k * e.inner);
  const int64_t rest = i / e.inner, j = i - rest * e.inner, o = rest / e.k, r = rest - o * e.k;
  const int64_t first = (o * e.inner + j) * e.n, k = sorted[first + r] - first;
  if (indices != nullptr) indices[i] = k;
  if (y != nullptr) y[i] = x[(o * e.n + k) * e.inner + j];
}

template <typename T>
OFSDP_CUDA_KERNEL mark_kernel(TopParams e, const int64_t* indices, T* y) {
  OFSDP_CUDA_ITEM(i, e.outer * e.n * e.inner);
  const int64_t rest = i / e.inner, j = i - rest * e.inner, o = rest / e.n, k = rest - o * e.n;
  y[i] = Stored<T>::from(indices[o * e.inner + j] == k ? Compute<T>(1) : Compute<T>(0));
}

int64_t line_count(const TopParams& e) { return e.outer * e.inner; }

bool sorts(const TopParams& e) {
  const bool narrow = e.dtype != DType::kInt64 && e.dtype != DType::kFloat64;
  const bool few = e.k <= kMaxWalks || e.n * e.k <= kMaxWalked;
  return narrow && !few && !e.last && line_count(e) * e.n < int64_t{1} << 31;
}

Sorting<uint64_t> sorting(const TopParams& e, void* scratch) {
  return make_sorting<uint64_t>(line_count(e) * e.n, 32 + bit_count(line_count(e)), scratch);
}

template <typename T>
cudaError_t top_by_sort(const TopParams& e, const T* x, T* y, int64_t* indices, void* scratch,
                        cudaStream_t stream) {
  if constexpr (sizeof(T) > 4) {
    return cudaErrorNotSupported;
  } else {
    const auto s = sorting(e, scratch);
    OFSDP_CUDA_TRY(over(s.count, stream, top_keys_kernel<T>, e, x, s.keys));
    OFSDP_CUDA_TRY(sort(s, stream));
    return over(line_count(e) * e.k, stream, take_kernel<T>, e, s.order, x, y, indices);
  }
}

}  // namespace

bool supports_top(DType dtype) { return is_number(dtype); }

size_t top_scratch(const TopParams& e) { return sorts(e) ? sorting(e, nullptr).total : 0; }

cudaError_t top(const TopParams& e, const void* x, void* y, int64_t* indices, void* scratch,
                cudaStream_t stream) {
  return with_number(e.dtype, [&]<typename T>(T) {
    const T* const from = static_cast<const T*>(x);
    T* const to = static_cast<T*>(y);
    if (sorts(e)) return top_by_sort(e, from, to, indices, scratch, stream);
    return e.inner >= kWarp ? over(line_count(e), stream, walk_kernel<T, 1>, e, from, to, indices)
                            : launch_blocks(stream, blocks_for(line_count(e), kThreads / kWarp),
                                            kThreads, walk_kernel<T, kWarp>, e, from, to, indices);
  });
}

cudaError_t mark_index(const TopParams& e, const int64_t* indices, void* y, cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    return over(line_count(e) * e.n, stream, mark_kernel<T>, e, indices, y);
  });
}

}  // namespace ofsdp::kernels::cuda
