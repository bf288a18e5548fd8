// Gather, and the gradient by sorting. Atomics would sum repeated rows in arbitrary order; instead
// the indices are sorted and runs of equal indices are summed. A block sums 32 sorted positions (a
// chunk), join_chunks joins runs across the chunks of a group (64 chunks), join_groups across
// groups. A run of n positions takes about n / 2048 + 96 sequential additions. The order depends on
// the indices alone.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/indexing/sort.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kChunk = 32;  // sorted positions per block
constexpr int kGroup = 64;  // chunks per group

__device__ inline int64_t load_index(const GatherParams& e, int64_t i) {
  const int64_t given = e.index_dtype == DType::kInt64 ? static_cast<const int64_t*>(e.indices)[i]
                                                       : static_cast<const int32_t*>(e.indices)[i];
  return wrapped(given, e.n, e.fault);
}

// One thread per element; a row has `width` elements of type T.
template <typename T>
OFSDP_CUDA_KERNEL gather_kernel(GatherParams v, int64_t width, const T* data, T* y) {
  OFSDP_CUDA_ITEM(i, v.outer * v.count * width);
  const int64_t row = i / width, outer = row / v.count;
  y[i] = data[(outer * v.n + load_index(v, row - outer * v.count)) * width + (i - row * width)];
}

template <typename T>
cudaError_t gather_as(const GatherParams& e, size_t bytes, const void* data, void* y,
                      cudaStream_t stream) {
  const auto width = static_cast<int64_t>(bytes / sizeof(T));
  return over(e.outer * e.count * width, stream, gather_kernel<T>, e, width, data, y);
}

OFSDP_CUDA_KERNEL tuple_kernel(TupleParams e, int64_t* rows) {
  OFSDP_CUDA_ITEM(i, e.tuples);
  int64_t row = i / e.per_batch;
  for (int a = 0; a < e.depth; ++a) {
    row = row * e.sizes[a] + wrapped(e.indices[i * e.depth + a], e.sizes[a], e.fault);
  }
  rows[i] = row;
}

// Sort keys: the wrapped indices.
OFSDP_CUDA_KERNEL keys_kernel(GatherParams v, uint32_t* keys) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < v.count) keys[i] = static_cast<uint32_t>(load_index(v, i));
}

// A chunk in shared memory. from_before, goes_on: the first and last run extend into the
// neighbours.
struct Chunk {
  uint32_t keys[kChunk], positions[kChunk];
  bool from_before, goes_on;
};

__device__ inline void load_chunk(Chunk& c, const uint32_t* keys, const uint32_t* positions,
                                  int64_t first, int length, int64_t count) {
  for (int k = static_cast<int>(threadIdx.x); k < length; k += kThreads) {
    c.keys[k] = keys[first + k];
    c.positions[k] = positions[first + k];
  }
  if (threadIdx.x == 0) {
    const int64_t end = first + length;
    c.from_before = first > 0 && keys[first - 1] == keys[first];
    c.goes_on = end < count && keys[end] == keys[end - 1];
  }
  __syncthreads();
}

template <int V, typename T>
__device__ inline void put(T* to, float* sum, bool accumulate) {
  if (accumulate) {
    float before[V];
    load<V>(to, before);
    unrolled<V>([&](int k) { sum[k] = before[k] + sum[k]; });
  }
  store<V>(to, sum);
}

// Block (chunk, outer), threads over columns. Sums each run in the chunk. Complete runs go to dx, a
// run that entered from the previous chunk to partial[chunk][0], and a run that starts here and
// continues to partial[chunk][1].
template <typename T, int V>
OFSDP_CUDA_KERNEL chunk_kernel(GatherParams v, const uint32_t* keys, const uint32_t* positions,
                               const T* dy, T* dx, float* partial, bool accumulate) {
  __shared__ Chunk c;
  const int64_t first = int64_t{blockIdx.x} * kChunk;
  const int length = static_cast<int>(v.count - first < kChunk ? v.count - first : kChunk);
  load_chunk(c, keys, positions, first, length, v.count);
  dy += blockIdx.y * v.count * v.inner;
  dx += blockIdx.y * v.n * v.inner;
  partial += (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * 2 * v.inner;
  for (int64_t column = int64_t{threadIdx.x} * V; column < v.inner;
       column += int64_t{kThreads} * V) {
    for (int k = 0; k < length;) {
      const int begin = k;
      float sum[V] = {}, row[V];
      for (; k < length && c.keys[k] == c.keys[begin]; ++k) {
        load<V>(dy + c.positions[k] * v.inner + column, row);
        unrolled<V>([&](int i) { sum[i] += row[i]; });
      }
      if (begin == 0 && c.from_before) {
        store<V>(partial + column, sum);
      } else if (k == length && c.goes_on) {
        store<V>(partial + v.inner + column, sum);
      } else {
        put<V>(dx + c.keys[begin] * v.inner + column, sum, accumulate);
      }
    }
  }
}

// Returns how many of the positions first, first + step, ... < end hold `key`, by binary search:
// keys are sorted.
__device__ inline int64_t run_length(const uint32_t* keys, uint32_t key, int64_t first,
                                     int64_t step, int64_t end) {
  int64_t low = 0, high = end > first ? (end - first + step - 1) / step : 0;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[first + middle * step] == key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Adds `count` partial sums in order. Unrolled, so that several loads are in flight.
template <int V>
__device__ inline void add_parts(const float* from, int64_t stride, int64_t count, float* sum) {
#pragma unroll 8
  for (int64_t k = 0; k < count; ++k) {
    float more[V];
    load<V>(from + k * stride, more);
    unrolled<V>([&](int i) { sum[i] += more[i]; });
  }
}

// Block (chunk, outer): joins the partial sums of a run inside one group. A block works if a run
// starts in the chunk and continues, or if the chunk is the group's first and a run enters it. Runs
// inside the group go to dx. Otherwise the sum goes to partial[last chunk of the group][1] if the
// run started here, or to partial[first chunk][0] if it entered; join_groups reads both. Blocks
// never read each other's results.
template <typename T, int V>
OFSDP_CUDA_KERNEL join_chunks(GatherParams v, const uint32_t* keys, T* dx, float* partial,
                              bool accumulate) {
  const int64_t chunk = blockIdx.x, first = chunk * kChunk, end = first + kChunk;
  if (end >= v.count) return;  // no run continues
  const int64_t last_chunk = chunk / kGroup * kGroup + kGroup - 1;
  const int64_t group_end =
      (last_chunk + 1) * kChunk < v.count ? (last_chunk + 1) * kChunk : v.count;
  const uint32_t key = keys[end - 1], first_key = keys[first];
  const bool from_before = first > 0 && keys[first - 1] == first_key;
  const bool begins = keys[end] == key && !(from_before && first_key == key);
  const bool heads = from_before && chunk % kGroup == 0;
  const int64_t stride = 2 * v.inner;
  float* const own = partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * stride;
  dx += blockIdx.y * v.n * v.inner;
  const int64_t more = begins ? run_length(keys, key, end, kChunk, group_end) : 0;
  const int64_t headed = heads ? run_length(keys, first_key, end, kChunk, group_end) : 0;
  const bool crosses =
      begins && group_end < v.count && keys[group_end - 1] == key && keys[group_end] == key;
  for (int64_t column = int64_t{threadIdx.x} * V; column < v.inner;
       column += int64_t{kThreads} * V) {
    float sum[V];
    if (headed > 0) {
      load<V>(own + column, sum);
      add_parts<V>(own + stride + column, stride, headed, sum);
      store<V>(own + column, sum);
    }
    if (!begins) continue;
    load<V>(own + v.inner + column, sum);
    add_parts<V>(own + stride + column, stride, more, sum);
    if (crosses) {
      store<V>(own + (last_chunk - chunk) * stride + v.inner + column, sum);
    } else {
      put<V>(dx + key * v.inner + column, sum, accumulate);
    }
  }
}

// Block (group, outer): finishes a run that starts in the group and continues after it.
template <typename T, int V>
OFSDP_CUDA_KERNEL join_groups(GatherParams v, int64_t chunks, const uint32_t* keys, T* dx,
                              const float* partial, bool accumulate) {
  constexpr int64_t kPlaces = int64_t{kGroup} * kChunk;
  const int64_t first = blockIdx.x * kPlaces, end = first + kPlaces;
  if (end >= v.count) return;
  const uint32_t key = keys[end - 1];
  if (keys[end] != key) return;
  if (first > 0 && keys[first - 1] == key) return;  // started in an earlier group
  const int64_t stride = 2 * v.inner, groups = run_length(keys, key, end, kPlaces, v.count);
  const float* const next =
      partial + (int64_t{blockIdx.y} * chunks + (int64_t{blockIdx.x} + 1) * kGroup) * stride;
  dx += blockIdx.y * v.n * v.inner;
  for (int64_t column = int64_t{threadIdx.x} * V; column < v.inner;
       column += int64_t{kThreads} * V) {
    float sum[V];
    load<V>(next - v.inner + column, sum);
    add_parts<V>(next + column, kGroup * stride, groups, sum);
    put<V>(dx + key * v.inner + column, sum, accumulate);
  }
}

size_t partial_bytes(const GatherParams& e) {
  return static_cast<size_t>(e.outer * blocks_for(e.count, kChunk) * 2 * e.inner) * sizeof(float);
}

template <typename T, int V>
cudaError_t add_rows(const GatherParams& e, const Sorting<uint32_t>& s, const T* dy, T* dx,
                     float* partial, bool accumulate, cudaStream_t stream) {
  const int64_t chunks = blocks_for(e.count, kChunk), groups = blocks_for(chunks, kGroup);
  const auto outer = static_cast<unsigned>(e.outer);
  const dim3 of_chunks(static_cast<unsigned>(chunks), outer),
      of_groups(static_cast<unsigned>(groups), outer);
  OFSDP_CUDA_TRY(launch(stream, of_chunks, dim3(kThreads), chunk_kernel<T, V>, e, s.sorted, s.order,
                        dy, dx, partial, accumulate));
  if (chunks == 1) return cudaSuccess;
  OFSDP_CUDA_TRY(launch(stream, of_chunks, dim3(kThreads), join_chunks<T, V>, e, s.sorted, dx,
                        partial, accumulate));
  if (groups == 1) return cudaSuccess;
  return launch(stream, of_groups, dim3(kThreads), join_groups<T, V>, e, chunks, s.sorted, dx,
                partial, accumulate);
}

template <typename T>
cudaError_t grad_as(const GatherParams& e, const T* dy, T* dx, bool accumulate, void* scratch,
                    cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.outer * e.n * e.inner) * sizeof(T);
  if (!accumulate && bytes > 0) OFSDP_CUDA_TRY(cudaMemsetAsync(dx, 0, bytes, stream));
  if (e.count * e.outer * e.inner == 0) return cudaSuccess;
  if (e.outer > 65535 || e.count > INT32_MAX || e.n > INT32_MAX) return cudaErrorNotSupported;
  auto* const partial = static_cast<float*>(scratch);
  const auto s = make_sorting<uint32_t>(e.count, bit_count(e.n),
                                        static_cast<char*>(scratch) + round_up(partial_bytes(e)));
  OFSDP_CUDA_TRY(over(e.count, stream, keys_kernel, e, s.keys));
  OFSDP_CUDA_TRY(sort(s, stream));
  constexpr int V = 4;
  return e.inner % V == 0 && aligned16(0, 1, dy, dx)
             ? add_rows<T, V>(e, s, dy, dx, partial, accumulate, stream)
             : add_rows<T, 1>(e, s, dy, dx, partial, accumulate, stream);
}

}  // namespace

cudaError_t gather(const GatherParams& e, size_t size, const void* data, void* y,
                   cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(e.inner) * size;
  return with_bits(widest(bytes, data, y),
                   [&]<typename T>(T) { return gather_as<T>(e, bytes, data, y, stream); });
}

size_t gather_grad_scratch(const GatherParams& e) {
  return round_up(partial_bytes(e)) +
         make_sorting<uint32_t>(e.count, bit_count(e.n), nullptr).total;
}

cudaError_t gather_grad(const GatherParams& e, DType dtype, const void* dy, void* dx,
                        bool accumulate, void* scratch, cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    return grad_as(e, static_cast<const T*>(dy), static_cast<T*>(dx), accumulate, scratch, stream);
  });
}

cudaError_t tuple_rows(const TupleParams& e, int64_t* rows, cudaStream_t stream) {
  return over(e.tuples, stream, tuple_kernel, e, rows);
}

}  // namespace ofsdp::kernels::cuda
