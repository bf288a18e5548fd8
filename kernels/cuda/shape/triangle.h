// Trilu and OneHot: tensors made from where their elements lie, of elements of any size; and ofsdp.KeepCounted.
//
// Memory: Trilu reads what it keeps and writes all of it, 16 bytes an access where rows allow; OneHot writes y, and reads an
// index for each element of y, from the cache.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// x, y [matrices, rows, columns]: y keeps elements with column - row >= k (upper) or <= k and has zeros elsewhere; y may be x.
struct TriangleExtent {
  int64_t matrices = 1, rows = 0, columns = 0, k = 0;
  bool upper = true;
};
cudaError_t triangle(const TriangleExtent& e, size_t size, const void* x, void* y,
                     cudaStream_t stream);

// y [outer, depth, inner] of indices [outer, inner] (int32, int64, float32): values[1] at the index, negative ones counted from
// the end, values[0] elsewhere and for indices out of range. `values` in device memory, of `size` bytes.
struct OneHotExtent {
  int64_t outer = 1, depth = 0, inner = 1;
  DType index_dtype = DType::kInt64;
};
bool has_one_hot(DType index_dtype);
cudaError_t one_hot(const OneHotExtent& e, size_t size, const void* indices, const void* values,
                    void* y, cudaStream_t stream);

// x, y [outer, n, inner]: of each of `outer` the first factor * count elements of n, zeros for the rest; count in device memory.
cudaError_t keep_counted(int64_t outer, int64_t n, int64_t inner, int64_t factor,
                         const int64_t* count, size_t size, const void* x, void* y,
                         cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
