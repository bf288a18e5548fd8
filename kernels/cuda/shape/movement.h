// Data that move: Transpose, Concat, Split, Slice, Expand, Pad as copies between strided tensors, and fills.
//
// strided_copy: walk over (src, dst); src strides may be 0 (Expand) or negative (Slice), src and dst point at the element
// of index 0. Elements of 1, 2, 4, 8 or 16 bytes; runs that are dense in both are moved 16 bytes at a time where
// addresses allow; where src is dense along another axis than dst, tiles of 32 x 32 go through shared memory. Memory: each
// element read and written once. src and dst do not overlap.
#pragma once

#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

cudaError_t strided_copy(size_t size, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& src_strides,
                         const std::vector<int64_t>& dst_strides, const void* src, void* dst,
                         cudaStream_t stream);

// dst[0 .. numel) = the `size` bytes at `value`, which is host memory.
cudaError_t fill(size_t size, const void* value, void* dst, int64_t numel, cudaStream_t stream);

// What strided_copy has settled for these operands: for tests.
struct CopyPlan {
  size_t size = 0;     // of an element after widening
  Walk walk;           // operands src and dst, axes by falling stride of dst
  int tile_axis = -1;  // axis along which src is dense, when tiles are used
};
CopyPlan plan_copy(size_t size, const std::vector<int64_t>& shape, std::vector<int64_t> src_strides,
                   std::vector<int64_t> dst_strides, const void* src, const void* dst);

}  // namespace ofsdp::kernels::cuda
