// The gradient of a gather adds rows that may repeat. Atomics would add them in any order, so the
// indices are sorted instead: chunks of 32 sorted places are added by one block each, runs that
// cross chunks are joined in groups of 64 chunks, and those that cross groups by a third kernel. So
// a run of n places has about n / 2048 + 96 additions after each other. The order of additions
// follows from the indices alone.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/embedding.h"
#include "kernels/cuda/indexing/sort.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kChunk = 32;  // sorted places of one block
constexpr int kGroup = 64;  // chunks

__device__ inline int64_t index_of(const GatherExtent& e, int64_t i) {
  const int64_t given = e.index_dtype == DType::kInt64 ? static_cast<const int64_t*>(e.indices)[i]
                                                       : static_cast<const int32_t*>(e.indices)[i];
  return wrapped(given, e.n, e.fault);
}

// `width` elements of T a row.
template <typename T>
OFSDP_CUDA_KERNEL gather_kernel(GatherExtent v, int64_t width, const T* data, T* y) {
  OFSDP_CUDA_ITEM(i, v.outer * v.count * width);
  const int64_t row = i / width, outer = row / v.count;
  y[i] = data[(outer * v.n + index_of(v, row - outer * v.count)) * width + (i - row * width)];
}

template <typename T>
cudaError_t gather_as(const GatherExtent& e, size_t bytes, const void* data, void* y,
                      cudaStream_t stream) {
  const auto width = static_cast<int64_t>(bytes / sizeof(T));
  return over(e.outer * e.count * width, stream, gather_kernel<T>, e, width, data, y);
}

OFSDP_CUDA_KERNEL tuple_kernel(TupleExtent e, int64_t* rows) {
  OFSDP_CUDA_ITEM(i, e.tuples);
  int64_t row = i / e.per_batch;
  for (int a = 0; a < e.depth; ++a) {
    row = row * e.sizes[a] + wrapped(e.indices[i * e.depth + a], e.sizes[a], e.fault);
  }
  rows[i] = row;
}

OFSDP_CUDA_KERNEL keys_kernel(GatherExtent v, uint32_t* keys) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < v.count) keys[i] = static_cast<uint32_t>(index_of(v, i));
}

// Sorted places of a chunk, and whether its first and last runs go on in the neighbours.
struct Chunk {
  uint32_t keys[kChunk], places[kChunk];
  bool from_before, goes_on;
};

__device__ inline void load_chunk(Chunk& c, const uint32_t* keys, const uint32_t* places,
                                  int64_t first, int length, int64_t count) {
  for (int k = static_cast<int>(threadIdx.x); k < length; k += kThreads) {
    c.keys[k] = keys[first + k];
    c.places[k] = places[first + k];
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

// Block (chunk, outer). Runs inside the chunk go to dx; its first to partial[..][0] when it began
// before, its last to partial[..][1] when it begins here and goes on.
template <typename T, int V>
OFSDP_CUDA_KERNEL chunk_kernel(GatherExtent v, const uint32_t* keys, const uint32_t* places,
                               const T* dy, T* dx, float* partial, bool accumulate) {
  __shared__ Chunk c;
  const int64_t first = int64_t{blockIdx.x} * kChunk;
  const int length = static_cast<int>(v.count - first < kChunk ? v.count - first : kChunk);
  load_chunk(c, keys, places, first, length, v.count);
  dy += blockIdx.y * v.count * v.inner;
  dx += blockIdx.y * v.n * v.inner;
  partial += (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * 2 * v.inner;
  for (int64_t column = int64_t{threadIdx.x} * V; column < v.inner;
       column += int64_t{kThreads} * V) {
    for (int k = 0; k < length;) {
      const int begin = k;
      float sum[V] = {}, row[V];
      for (; k < length && c.keys[k] == c.keys[begin]; ++k) {
        load<V>(dy + c.places[k] * v.inner + column, row);
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

// How many of the places first, first + step, ... before `end` have this key: the first of them,
// since keys are sorted and the run of the key begins before.
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

// sum += from[0], from[stride], ..., in order; several loads are under way at once.
template <int V>
__device__ inline void add_parts(const float* from, int64_t stride, int64_t count, float* sum) {
#pragma unroll 8
  for (int64_t k = 0; k < count; ++k) {
    float more[V];
    load<V>(from + k * stride, more);
    unrolled<V>([&](int i) { sum[i] += more[i]; });
  }
}

// Parts of a run are joined inside groups of kGroup chunks first. Block (chunk, outer): where a run
// begins in the chunk and goes on, its parts in this group; where the chunk begins a group, the
// parts there of the run that comes from before. The sum goes to dx when the run began and ends in
// the group; else to what join_groups reads: partial[last chunk][1] where it began in the group,
// partial[first chunk][0] where it did not. No block reads what another one writes.
template <typename T, int V>
OFSDP_CUDA_KERNEL join_chunks(GatherExtent v, const uint32_t* keys, T* dx, float* partial,
                              bool accumulate) {
  const int64_t chunk = blockIdx.x, first = chunk * kChunk, end = first + kChunk;
  if (end >= v.count) return;  // nothing goes on
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

// Block (group, outer): a run that begins in the group and goes on after it.
template <typename T, int V>
OFSDP_CUDA_KERNEL join_groups(GatherExtent v, int64_t chunks, const uint32_t* keys, T* dx,
                              const float* partial, bool accumulate) {
  constexpr int64_t kPlaces = int64_t{kGroup} * kChunk;
  const int64_t first = blockIdx.x * kPlaces, end = first + kPlaces;
  if (end >= v.count) return;
  const uint32_t key = keys[end - 1];
  if (keys[end] != key) return;
  if (first > 0 && keys[first - 1] == key) return;  // it began before
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

size_t partial_bytes(const GatherExtent& e) {
  return static_cast<size_t>(e.outer * blocks_for(e.count, kChunk) * 2 * e.inner) * sizeof(float);
}

template <typename T, int V>
cudaError_t add_rows(const GatherExtent& e, const Sorting<uint32_t>& s, const T* dy, T* dx,
                     float* partial, bool accumulate, cudaStream_t stream) {
  const int64_t chunks = blocks_for(e.count, kChunk), groups = blocks_for(chunks, kGroup);
  const auto outer = static_cast<unsigned>(e.outer);
  const dim3 of_chunks(static_cast<unsigned>(chunks), outer),
      of_groups(static_cast<unsigned>(groups), outer);
  OFSDP_CUDA_TRY(launch(stream, of_chunks, dim3(kThreads), chunk_kernel<T, V>, e, s.sorted, s.moved,
                        dy, dx, partial, accumulate));
  if (chunks == 1) return cudaSuccess;
  OFSDP_CUDA_TRY(launch(stream, of_chunks, dim3(kThreads), join_chunks<T, V>, e, s.sorted, dx,
                        partial, accumulate));
  if (groups == 1) return cudaSuccess;
  return launch(stream, of_groups, dim3(kThreads), join_groups<T, V>, e, chunks, s.sorted, dx,
                partial, accumulate);
}

template <typename T>
cudaError_t grad_as(const GatherExtent& e, const T* dy, T* dx, bool accumulate, void* scratch,
                    cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.outer * e.n * e.inner) * sizeof(T);
  if (!accumulate && bytes > 0) OFSDP_CUDA_TRY(cudaMemsetAsync(dx, 0, bytes, stream));
  if (e.count * e.outer * e.inner == 0) return cudaSuccess;
  if (e.outer > 65535 || e.count > INT32_MAX || e.n > INT32_MAX) return cudaErrorNotSupported;
  auto* const partial = static_cast<float*>(scratch);
  const auto s = sorting_of<uint32_t>(e.count, bits_of(e.n),
                                      static_cast<char*>(scratch) + round_up(partial_bytes(e)));
  OFSDP_CUDA_TRY(over(e.count, stream, keys_kernel, e, s.keys));
  OFSDP_CUDA_TRY(sort(s, stream));
  constexpr int V = 4;
  return e.inner % V == 0 && aligned16(0, 1, dy, dx)
             ? add_rows<T, V>(e, s, dy, dx, partial, accumulate, stream)
             : add_rows<T, 1>(e, s, dy, dx, partial, accumulate, stream);
}

}  // namespace

cudaError_t gather(const GatherExtent& e, size_t size, const void* data, void* y,
                   cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(e.inner) * size;
  return with_bits(widest(bytes, data, y),
                   [&]<typename T>(T) { return gather_as<T>(e, bytes, data, y, stream); });
}

size_t gather_grad_scratch(const GatherExtent& e) {
  return round_up(partial_bytes(e)) + sorting_of<uint32_t>(e.count, bits_of(e.n), nullptr).total;
}

cudaError_t gather_grad(const GatherExtent& e, DType dtype, const void* dy, void* dx,
                        bool accumulate, void* scratch, cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    return grad_as(e, static_cast<const T*>(dy), static_cast<T*>(dx), accumulate, scratch, stream);
  });
}

cudaError_t tuple_rows(const TupleExtent& e, int64_t* rows, cudaStream_t stream) {
  return over(e.tuples, stream, tuple_kernel, e, rows);
}

}  // namespace ofsdp::kernels::cuda
