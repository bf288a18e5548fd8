// GatherElements, row indices for scatters, and the scatters.
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/indexing/sort.h"
#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kChunkPositions = 256;

OFSDP_CUDA_KERNEL row_keys_kernel(int64_t count, const int64_t* rows, uint32_t* keys) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) keys[i] = static_cast<uint32_t>(rows[i]);
}

template <typename C>
__device__ inline C combined(ScatterKind kind, C a, C b) {
  switch (kind) {
    OFSDP_CASE(ScatterKind::kAdd, sum_of(a, b));
    OFSDP_CASE(ScatterKind::kMul, product_of(a, b));
    OFSDP_CASE(ScatterKind::kMax, b > a || b != b ? b : a);
    default:
      return b < a || b != b ? b : a;
  }
}

// One thread per (sorted position, column); the first position in a run of equal rows does the
// work.
template <typename T>
OFSDP_CUDA_KERNEL combine_kernel(ScatterKind kind, int64_t count, int64_t inner,
                                 const uint32_t* keys, const uint32_t* from, const T* updates,
                                 T* y) {
  OFSDP_CUDA_ITEM(i, count * inner);
  const int64_t first = i / inner, column = i - first * inner;
  const uint32_t key = keys[first];
  if (first > 0 && keys[first - 1] == key) return;
  T* const to = y + static_cast<int64_t>(key) * inner + column;
  Compute<T> value = to_float(*to);
  for (int64_t k = first; k < count && keys[k] == key; ++k) {
    value =
        combined(kind, value, to_float(updates[static_cast<int64_t>(from[k]) * inner + column]));
  }
  *to = Stored<T>::from(value);
}

// Float sums, one thread per (sorted position, column). The first position of a run inside each
// chunk (kChunkPositions positions) sums the run's part in this chunk. It goes to y if the run is
// complete, otherwise to partial [chunks][2][inner]: 0 for a run that entered, 1 for one that
// continues.
template <typename T>
OFSDP_CUDA_KERNEL add_kernel(int64_t count, int64_t inner, const uint32_t* keys,
                             const uint32_t* from, const T* updates, T* y, Compute<T>* partial) {
  OFSDP_CUDA_ITEM(i, count * inner);
  const int64_t place = i / inner, column = i - place * inner, chunk = place / kChunkPositions;
  const uint32_t key = keys[place];
  const bool before = place > 0 && keys[place - 1] == key;
  if (before && place % kChunkPositions != 0) return;
  const int64_t end = (chunk + 1) * kChunkPositions < count ? (chunk + 1) * kChunkPositions : count;
  T* const to = y + static_cast<int64_t>(key) * inner + column;
  Compute<T> sum = before ? Compute<T>(0) : to_float(*to);
  int64_t k = place;
  for (; k < end && keys[k] == key; ++k) {
    sum += to_float(updates[static_cast<int64_t>(from[k]) * inner + column]);
  }
  if (before) {
    partial[chunk * 2 * inner + column] = sum;
  } else if (k < count && keys[k] == key) {
    partial[(chunk * 2 + 1) * inner + column] = sum;
  } else {
    *to = Stored<T>::from(sum);
  }
}

// One thread per (chunk, column): the chunk where a run starts adds the parts from later chunks.
template <typename T>
OFSDP_CUDA_KERNEL join_kernel(int64_t count, int64_t inner, const uint32_t* keys, T* y,
                              const Compute<T>* partial) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t chunk = i / inner, column = i - chunk * inner, end = (chunk + 1) * kChunkPositions;
  if (end >= count) return;
  const uint32_t key = keys[end - 1];
  const int64_t first = end - kChunkPositions;
  if (keys[end] != key) return;
  if (keys[first] == key && first > 0 && keys[first - 1] == key)
    return;  // started in an earlier chunk
  Compute<T> sum = partial[(chunk * 2 + 1) * inner + column];
  for (int64_t next = chunk + 1;
       next * kChunkPositions < count && keys[next * kChunkPositions] == key; ++next) {
    sum += partial[next * 2 * inner + column];
  }
  y[static_cast<int64_t>(key) * inner + column] = Stored<T>::from(sum);
}

// The last update of each row wins.
template <typename T>
OFSDP_CUDA_KERNEL put_kernel(int64_t count, int64_t inner, const uint32_t* keys,
                             const uint32_t* from, const T* updates, T* y) {
  OFSDP_CUDA_ITEM(i, count * inner);
  const int64_t last = i / inner, column = i - last * inner;
  const uint32_t key = keys[last];
  if (last + 1 < count && keys[last + 1] == key) return;
  y[static_cast<int64_t>(key) * inner + column] =
      updates[static_cast<int64_t>(from[last]) * inner + column];
}

// Uses the widest access that row size and addresses allow.
cudaError_t put(const ScatterParams& e, const Sorting<uint32_t>& s, const void* updates, void* y,
                cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(e.inner) * dtype_size(e.dtype);
  return with_bits(widest(bytes, updates, y), [&]<typename T>(T) {
    const auto inner = static_cast<int64_t>(bytes / sizeof(T));
    return over(e.count * inner, stream, put_kernel<T>, e.count, inner, s.sorted, s.order, updates,
                y);
  });
}

bool adds_floats(const ScatterParams& e) {
  return e.kind == ScatterKind::kAdd && e.dtype != DType::kInt32 && e.dtype != DType::kInt64;
}

int64_t chunk_count(const ScatterParams& e) { return blocks_for(e.count, kChunkPositions); }

template <typename T>
cudaError_t add(const ScatterParams& e, const Sorting<uint32_t>& s, const T* updates, T* y,
                void* scratch, cudaStream_t stream) {
  auto* const partial = static_cast<Compute<T>*>(scratch);
  OFSDP_CUDA_TRY(over(e.count * e.inner, stream, add_kernel<T>, e.count, e.inner, s.sorted, s.order,
                      updates, y, partial));
  return over(chunk_count(e) * e.inner, stream, join_kernel<T>, e.count, e.inner, s.sorted, y,
              partial);
}

template <typename Index>
__device__ inline int64_t data_offset(const ElementParams& e, int64_t i) {
  int64_t at[1];
  places<1>(e.walk, i, at);
  return at[0] + wrapped(static_cast<const Index*>(e.indices)[i], e.n, e.fault) * e.step;
}

template <typename Index, typename T>
OFSDP_CUDA_KERNEL gather_kernel(ElementParams e, const T* data, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < e.walk.numel) y[i] = data[data_offset<Index>(e, i)];
}

template <typename Index>
OFSDP_CUDA_KERNEL rows_kernel(ElementParams e, int64_t* rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < e.walk.numel) rows[i] = data_offset<Index>(e, i);
}

OFSDP_CUDA_KERNEL moved_kernel(StridedIndex walk, const int64_t* indices, int64_t count,
                               Fault fault, int64_t* rows) {
  OFSDP_CUDA_ITEM(i, count);
  const int64_t index = indices[i], most = walk.numel;
  if (index < 0 || index >= most) note(fault, index, most);
  int64_t at[1];
  places<1>(walk, index < 0 || index >= most ? 0 : index, at);
  rows[i] = at[0];
}

template <typename F>
cudaError_t with_index(DType dtype, const F& f) {
  return dtype == DType::kInt32 ? f(int32_t{}) : f(int64_t{});
}

}  // namespace

bool can_scatter(const ScatterParams& e) {
  const bool sorts = e.rows <= int64_t{1} << 32 && e.count < int64_t{1} << 31;
  return sorts && (e.kind == ScatterKind::kNone || is_number(e.dtype));
}

size_t scatter_scratch(const ScatterParams& e) {
  const size_t partial =
      adds_floats(e) ? static_cast<size_t>(chunk_count(e) * 2 * e.inner) * sizeof(double) : 0;
  return make_sorting<uint32_t>(e.count, bit_count(e.rows), nullptr).total + partial;
}

cudaError_t scatter(const ScatterParams& e, const int64_t* rows, const void* updates, void* y,
                    void* scratch, cudaStream_t stream) {
  if (e.count * e.inner == 0) return cudaSuccess;
  const auto s = make_sorting<uint32_t>(e.count, bit_count(e.rows), scratch);
  OFSDP_CUDA_TRY(over(e.count, stream, row_keys_kernel, e.count, rows, s.keys));
  OFSDP_CUDA_TRY(sort(s, stream));
  if (e.kind == ScatterKind::kNone) return put(e, s, updates, y, stream);
  if (adds_floats(e)) {
    const auto run = [&]<typename T>(T) {
      return add<T>(e, s, static_cast<const T*>(updates), static_cast<T*>(y),
                    static_cast<char*>(scratch) + s.total, stream);
    };
    return e.dtype == DType::kFloat64 ? run(double{}) : with_float(e.dtype, run);
  }
  return with_number(e.dtype, [&]<typename T>(T) {
    return over(e.count * e.inner, stream, combine_kernel<T>, e.kind, e.count, e.inner, s.sorted,
                s.order, updates, y);
  });
}

cudaError_t gather_elements(const ElementParams& e, size_t size, const void* data, void* y,
                            cudaStream_t stream) {
  return with_index(e.index_dtype, [&]<typename Index>(Index) {
    return with_bits(size, [&]<typename T>(T) {
      return over(e.walk.numel, stream, gather_kernel<Index, T>, e, data, y);
    });
  });
}

cudaError_t element_rows(const ElementParams& e, int64_t* rows, cudaStream_t stream) {
  return with_index(e.index_dtype, [&]<typename Index>(Index) {
    return over(e.walk.numel, stream, rows_kernel<Index>, e, rows);
  });
}

cudaError_t mapped_rows(const StridedIndex& walk, const int64_t* indices, int64_t count,
                        Fault fault, int64_t* rows, cudaStream_t stream) {
  return over(count, stream, moved_kernel, walk, indices, count, fault, rows);
}

}  // namespace ofsdp::kernels::cuda
