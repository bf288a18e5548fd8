// Data movement: strided copies (Transpose, Concat, Split, Slice, Expand, Pad), fills, Trilu,
// OneHot, KeepCounted, JoinRows.
//
// strided_copy: strides are in elements; src strides may be 0 (Expand) or negative (Slice); src and
// dst point at the element of index 0 and must not overlap. Elements have 1, 2, 4, 8 or 16 bytes.
// Runs that are dense on both sides move in 16-byte accesses if addresses allow. If src is dense
// along another axis than dst, 32 x 32 tiles go through shared memory. Each element is read and
// written once.
#pragma once

#include "kernels/cuda/device/types.h"
#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {

cudaError_t strided_copy(size_t size, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& src_strides,
                         const std::vector<int64_t>& dst_strides, const void* src, void* dst,
                         cudaStream_t stream);

// Fills dst[0 .. numel) with the `size` bytes at `value` in host memory.
cudaError_t fill(size_t size, const void* value, void* dst, int64_t numel, cudaStream_t stream);

// The plan that strided_copy would choose; for tests.
struct CopyPlan {
  size_t size = 0;     // bytes per element after widening
  StridedIndex walk;   // operands src and dst; axes by falling dst stride
  int tile_axis = -1;  // the axis along which src is dense, if tiled; else -1
};
CopyPlan plan_copy(size_t size, const std::vector<int64_t>& shape, std::vector<int64_t> src_strides,
                   std::vector<int64_t> dst_strides, const void* src, const void* dst);

// Trilu, for elements of any size. y [matrices, rows, columns] copies elements of x with column -
// row >= k (upper) or <= k (lower) and is 0 elsewhere; y may alias x. Reads only the elements to
// copy, in 16-byte accesses if rows allow.
struct TriangleParams {
  int64_t matrices = 1, rows = 0, columns = 0, k = 0;
  bool upper = true;
};
cudaError_t triangle(const TriangleParams& e, size_t size, const void* x, void* y,
                     cudaStream_t stream);

// OneHot: y [outer, depth, inner] is values[1] at the index, else values[0]. indices [outer, inner]
// are int32, int64 or float32; negative ones count from the end, and one out of range selects
// nothing. `values` is in device memory, `size` bytes each.
struct OneHotParams {
  int64_t outer = 1, depth = 0, inner = 1;
  DType index_dtype = DType::kInt64;
};
bool has_one_hot(DType index_dtype);
cudaError_t one_hot(const OneHotParams& e, size_t size, const void* indices, const void* values,
                    void* y, cudaStream_t stream);

// x, y [outer, n, inner]: copies the first factor * count elements along n and clears the rest.
// count is in device memory.
cudaError_t keep_counted(int64_t outer, int64_t n, int64_t inner, int64_t factor,
                         const int64_t* count, size_t size, const void* x, void* y,
                         cudaStream_t stream);

// y [ranks, part]: writes the contribution of `rank`, x [rows, width] with a header, and zeros for
// the other ranks (kernels/core/planned_operands.h). float32.
struct JoinParams {
  int64_t ranks = 1, part = 0, header = 0, rank = 0;
  int64_t rows = 0, width = 0;
};
cudaError_t join_rows(const JoinParams& e, const float* x, float* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
