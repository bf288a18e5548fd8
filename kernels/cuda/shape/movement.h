// Data that move: Transpose, Concat, Split, Slice, Expand, Pad as copies between strided tensors,
// fills, and
// this rank's part of the rows that ranks join.
//
// strided_copy: walk over (src, dst); src strides may be 0 (Expand) or negative (Slice), src and
// dst point at the element of index 0. Elements of 1, 2, 4, 8 or 16 bytes; runs that are dense in
// both are moved 16 bytes at a time where addresses allow; where src is dense along another axis
// than dst, tiles of 32 x 32 go through shared memory. Memory: each element read and written once.
// src and dst do not overlap.
#pragma once

#include "kernels/cuda/device/types.h"
#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

cudaError_t strided_copy(size_t size, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& src_strides,
                         const std::vector<int64_t>& dst_strides, const void* src, void* dst,
                         cudaStream_t stream);

// dst[0 .. numel) = the `size` bytes at `value`, which is host memory.
cudaError_t fill(size_t size, const void* value, void* dst, int64_t numel, cudaStream_t stream);

// The choice of strided_copy for these operands: for tests.
struct CopyPlan {
  size_t size = 0;     // of an element after widening
  Walk walk;           // operands src and dst, axes by falling stride of dst
  int tile_axis = -1;  // axis along which src is dense, when tiles are used
};
CopyPlan plan_copy(size_t size, const std::vector<int64_t>& shape, std::vector<int64_t> src_strides,
                   std::vector<int64_t> dst_strides, const void* src, const void* dst);

// Trilu and OneHot: tensors made from where their elements lie, of elements of any size; and
// ofsdp.KeepCounted.
//
// Memory: Trilu reads what it keeps and writes all of it, 16 bytes an access where rows allow;
// OneHot writes y, and reads an index for each element of y, from the cache.
// x, y [matrices, rows, columns]: y keeps elements with column - row >= k (upper) or <= k and has
// zeros elsewhere; y may be x.
struct TriangleExtent {
  int64_t matrices = 1, rows = 0, columns = 0, k = 0;
  bool upper = true;
};
cudaError_t triangle(const TriangleExtent& e, size_t size, const void* x, void* y,
                     cudaStream_t stream);

// y [outer, depth, inner] of indices [outer, inner] (int32, int64, float32): values[1] at the
// index, negative ones counted from the end, values[0] elsewhere and for indices out of range.
// `values` in device memory, of `size` bytes.
struct OneHotExtent {
  int64_t outer = 1, depth = 0, inner = 1;
  DType index_dtype = DType::kInt64;
};
bool has_one_hot(DType index_dtype);
cudaError_t one_hot(const OneHotExtent& e, size_t size, const void* indices, const void* values,
                    void* y, cudaStream_t stream);

// x, y [outer, n, inner]: of each of `outer` the first factor * count elements of n, zeros for the
// rest; count in device memory.
cudaError_t keep_counted(int64_t outer, int64_t n, int64_t inner, int64_t factor,
                         const int64_t* count, size_t size, const void* x, void* y,
                         cudaStream_t stream);

// y [ranks, part] of x [rows, width], float32: the part of `rank`, and zeros in the others'
// (kernels/core/joined_rows.h). Memory: x read and y written once.
struct JoinExtent {
  int64_t ranks = 1, part = 0, header = 0, rank = 0;
  int64_t rows = 0, width = 0;
};
cudaError_t join_rows(const JoinExtent& e, const float* x, float* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
