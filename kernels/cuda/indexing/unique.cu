// Groups of equal slices (selection.h), a thread a slice in each pass.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/selection.h"

namespace ofsdp::kernels::cuda {
namespace {

template <typename V>
__device__ inline bool comes_before(V a, V b) {
  return a < b || (a == a && b != b);
}

// Returns -1, 0 or 1 as slice i comes before slice j, equals it or comes after it.
template <typename T>
__device__ inline int order_of(const UniqueParams& e, const T* x, int64_t i, int64_t j) {
  for (int64_t o = 0; o < e.outer; ++o) {
    for (int64_t k = 0; k < e.inner; ++k) {
      const auto a = to_float(x[(o * e.n + i) * e.inner + k]);
      const auto b = to_float(x[(o * e.n + j) * e.inner + k]);
      if (comes_before(a, b)) return -1;
      if (comes_before(b, a)) return 1;
    }
  }
  return 0;
}

// first_like[i]: the first slice that equals slice i.
template <typename T>
OFSDP_CUDA_KERNEL unique_firsts(UniqueParams e, const T* x, int64_t* first_like) {
  OFSDP_CUDA_ITEM(i, e.n);
  int64_t j = 0;
  while (j < i && order_of(e, x, i, j) != 0) ++j;
  first_like[i] = j;
}

// place[i], for the first of a group: the group's number. Its size and first slice go out.
template <typename T>
OFSDP_CUDA_KERNEL unique_places(UniqueParams e, const T* x, const int64_t* first_like,
                                int64_t* place, int64_t* first, int64_t* counts) {
  OFSDP_CUDA_ITEM(i, e.n);
  if (first_like[i] != i) return;
  int64_t before = 0, size = 0;
  for (int64_t j = 0; j < e.n; ++j) {
    size += first_like[j] == i ? 1 : 0;
    if (first_like[j] != j || j == i) continue;
    before += (e.sorted ? order_of(e, x, j, i) < 0 : j < i) ? 1 : 0;
  }
  place[i] = before;
  first[before] = i;
  counts[before] = size;
}

OFSDP_CUDA_KERNEL unique_inverse(int64_t n, const int64_t* first_like, const int64_t* place,
                                 int64_t* inverse) {
  OFSDP_CUDA_ITEM(i, n);
  inverse[i] = place[first_like[i]];
}

// One block: counts the groups, and repeats the last one up to the end.
OFSDP_CUDA_KERNEL unique_rest(int64_t n, const int64_t* first_like, int64_t* first, int64_t* counts,
                              int64_t* count) {
  __shared__ int64_t spare[kThreads / kWarp];
  int64_t groups = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) groups += first_like[i] == i ? 1 : 0;
  groups = group_reduce<kThreads>(groups, Add{}, spare);
  for (int64_t i = groups + threadIdx.x; i < n; i += kThreads) {
    first[i] = first[groups - 1];
    counts[i] = counts[groups - 1];
  }
  if (threadIdx.x == 0) *count = groups;
}

}  // namespace

bool supports_unique(DType dtype) { return is_number(dtype); }

size_t unique_scratch(const UniqueParams& e) {
  return 2 * static_cast<size_t>(e.n) * sizeof(int64_t);
}

cudaError_t find_unique(const UniqueParams& e, const void* x, int64_t* first, int64_t* inverse,
                        int64_t* counts, int64_t* count, void* scratch, cudaStream_t stream) {
  auto* const first_like = static_cast<int64_t*>(scratch);
  int64_t* const place = first_like + e.n;
  OFSDP_CUDA_TRY(with_number(e.dtype, [&]<typename T>(T) -> cudaError_t {
    const auto* const values = static_cast<const T*>(x);
    OFSDP_CUDA_TRY(over(e.n, stream, unique_firsts<T>, e, values, first_like));
    return over(e.n, stream, unique_places<T>, e, values, first_like, place, first, counts);
  }));
  OFSDP_CUDA_TRY(over(e.n, stream, unique_inverse, e.n, first_like, place, inverse));
  return launch_blocks(stream, 1, kThreads, unique_rest, e.n, first_like, first, counts, count);
}

}  // namespace ofsdp::kernels::cuda
