// NonZero-like searches without atomics: chunks count, one block computes offsets, chunks write
// positions in order. Reversed sequences and caches: whole rows in the widest packs that fit.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/selection.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kFoundChunk = 2048;
constexpr int kEach = static_cast<int>(kFoundChunk) / kThreads;

template <typename T>
__device__ inline bool found(T v, bool floats) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  return (floats ? static_cast<T>(v & static_cast<T>(~kSign)) : v) != 0;
}

// Each thread owns kEach consecutive elements, so that positions stay in order.
__device__ inline int64_t element(int k) {
  return int64_t{blockIdx.x} * kFoundChunk + int64_t{threadIdx.x} * kEach + k;
}

template <typename T>
__device__ inline int64_t count_found(const FoundParams& e, const T* x) {
  int64_t mine = 0;
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = element(k);
    if (i < e.n && found(x[i], e.floats)) ++mine;
  }
  return mine;
}

// Block: counts matches in one chunk.
template <typename T>
OFSDP_CUDA_KERNEL count_kernel(FoundParams e, const T* x, int64_t* counts) {
  __shared__ int64_t spare[kThreads / kWarp];
  const int64_t all = group_reduce<kThreads>(count_found(e, x), Add{}, spare);
  if (threadIdx.x == 0) counts[blockIdx.x] = all;
}

// Exclusive prefix sum over the block's threads; stores the total in `all`.
__device__ inline int64_t prefix_sum(int64_t mine, int64_t* shared, int64_t* all) {
  __syncthreads();
  shared[threadIdx.x] = mine;
  __syncthreads();
  int64_t sum = 0, total = 0;
  for (int k = 0; k < kThreads; ++k) {
    if (k < static_cast<int>(threadIdx.x)) sum += shared[k];
    total += shared[k];
  }
  *all = total;
  return sum;
}

// One block: replaces counts by exclusive prefix sums and appends the total.
OFSDP_CUDA_KERNEL offsets_kernel(int64_t chunks, int64_t* counts, int64_t* total) {
  __shared__ int64_t shared[kThreads];
  int64_t before = 0;
  for (int64_t base = 0; base < chunks; base += kThreads) {
    const int64_t i = base + threadIdx.x;
    const int64_t mine = i < chunks ? counts[i] : 0;
    int64_t all = 0;
    const int64_t front = prefix_sum(mine, shared, &all);
    if (i < chunks) counts[i] = before + front;
    before += all;
  }
  if (threadIdx.x == 0) {
    counts[chunks] = before;
    if (total != nullptr) *total = before;
  }
}

// Block: writes the chunk's positions from offsets[chunk] on.
template <typename T>
OFSDP_CUDA_KERNEL positions_kernel(FoundParams e, const T* x, const int64_t* offsets,
                                   int64_t* positions) {
  __shared__ int64_t shared[kThreads];
  int64_t all = 0;
  int64_t at = offsets[blockIdx.x] + prefix_sum(count_found(e, x), shared, &all);
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = element(k);
    if (i < e.n && found(x[i], e.floats)) positions[at++] = i;
  }
}

// Fills unused entries with the last position.
OFSDP_CUDA_KERNEL rest_kernel(int64_t n, const int64_t* total, int64_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, count = *total;
  if (i < n && i >= count) positions[i] = count == 0 ? 0 : positions[count - 1];
}

struct Sizes {
  int rank;
  int64_t shape[kMaxAxes];
};
OFSDP_CUDA_KERNEL split_kernel(int64_t n, Sizes s, int64_t* y) {
  OFSDP_CUDA_ITEM(i, n);
  int64_t rest = y[i];
  for (int axis = s.rank - 1; axis >= 0; --axis) {
    y[axis * n + i] = rest % s.shape[axis];
    rest /= s.shape[axis];
  }
}

OFSDP_CUDA_KERNEL indices_kernel(ScatterIndexParams e, const int64_t* x, const int64_t* count,
                                 int64_t* y) {
  OFSDP_CUDA_ITEM(i, e.numel);
  const int component = static_cast<int>(i % e.components);
  const int64_t index = x[i];
  const int64_t kept = index < 0 ? index + e.dims[component] : index;
  y[i] = i / e.inner % e.n < e.factor * *count ? kept : component == 0 ? e.dims[0] : 0;
}

__global__ void require_kernel(const int64_t* count, int64_t factor, int64_t expected,
                               Fault fault) {
  if (*count * factor != expected) note(fault, *count * factor, expected);
}

__device__ inline int64_t in_range(int64_t value, int64_t most, Fault fault) {
  if (value >= 0 && value <= most) return value;
  note(fault, value, most);
  return 0;
}

// One thread per element; a row has `width` elements of type T.
template <typename T>
OFSDP_CUDA_KERNEL reverse_kernel(ReverseParams e, int64_t width, const T* x, T* y) {
  OFSDP_CUDA_ITEM(i, e.steps * e.batch * width);
  const int64_t row = i / width;
  const int64_t t = e.time_first ? row / e.batch : row % e.steps,
                b = e.time_first ? row % e.batch : row / e.steps;
  const int64_t length = in_range(e.lengths[b], e.steps, e.fault);
  const int64_t from = t < length ? length - 1 - t : t;
  y[i] = x[(e.time_first ? from * e.batch + b : b * e.steps + from) * width + (i - row * width)];
}

template <typename T>
OFSDP_CUDA_KERNEL cache_kernel(CacheParams e, int64_t width, const T* update, T* cache) {
  OFSDP_CUDA_ITEM(i, e.outer * e.n * width);
  const int64_t row = i / width, o = row / e.n;
  int64_t first = 0;
  if (e.first != nullptr) {
    first = in_range(e.first[o / e.per_batch], e.circular ? INT64_MAX : e.size - e.n, e.fault);
  }
  const int64_t to = (first % e.size + (row - o * e.n)) % e.size;
  cache[(o * e.size + to) * width + (i - row * width)] = update[i];
}

}  // namespace

size_t found_scratch(const FoundParams& e) {
  return static_cast<size_t>(blocks_for(e.n, kFoundChunk) + 1) * sizeof(int64_t);
}

cudaError_t found_positions(const FoundParams& e, const void* x, int64_t* positions, int64_t* count,
                            void* scratch, cudaStream_t stream) {
  const int64_t chunks = blocks_for(e.n, kFoundChunk);
  auto* const counts = static_cast<int64_t*>(scratch);
  return with_whole(e.size, [&]<typename T>(T) {
    const T* const from = static_cast<const T*>(x);
    OFSDP_CUDA_TRY(launch_blocks(stream, chunks, kThreads, count_kernel<T>, e, from, counts));
    OFSDP_CUDA_TRY(launch_blocks(stream, 1, kThreads, offsets_kernel, chunks, counts, count));
    OFSDP_CUDA_TRY(
        launch_blocks(stream, chunks, kThreads, positions_kernel<T>, e, from, counts, positions));
    if (!e.fills) return cudaSuccess;
    return over(e.n, stream, rest_kernel, e.n, counts + chunks, positions);
  });
}

cudaError_t split_positions(int64_t n, const int64_t* shape, int rank, int64_t* y,
                            cudaStream_t stream) {
  if (rank > kMaxAxes) return cudaErrorNotSupported;
  Sizes sizes{rank, {}};
  std::copy_n(shape, rank, sizes.shape);
  return over(n, stream, split_kernel, n, sizes, y);
}

cudaError_t scatter_indices(const ScatterIndexParams& e, const int64_t* x, const int64_t* count,
                            int64_t* y, cudaStream_t stream) {
  return over(e.numel, stream, indices_kernel, e, x, count, y);
}

cudaError_t require_count(const int64_t* count, int64_t factor, int64_t expected, Fault fault,
                          cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, require_kernel, count, factor, expected, fault);
}

cudaError_t reverse_sequence(const ReverseParams& e, const void* x, void* y, cudaStream_t stream) {
  return with_bits(widest(static_cast<size_t>(e.bytes), x, y), [&]<typename T>(T) {
    const int64_t width = e.bytes / static_cast<int64_t>(sizeof(T));
    return over(e.steps * e.batch * width, stream, reverse_kernel<T>, e, width, x, y);
  });
}

cudaError_t write_cache(const CacheParams& e, const void* update, void* cache,
                        cudaStream_t stream) {
  return with_bits(widest(static_cast<size_t>(e.bytes), update, cache), [&]<typename T>(T) {
    const int64_t width = e.bytes / static_cast<int64_t>(sizeof(T));
    return over(e.outer * e.n * width, stream, cache_kernel<T>, e, width, update, cache);
  });
}

}  // namespace ofsdp::kernels::cuda
