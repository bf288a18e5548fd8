// Gather along an axis (embeddings) and its gradient, in a fixed order without atomics.
//
// data [outer, n, inner], indices [count] (int32 or int64; negative ones count from the end), y
// [outer, count, inner]. The gradient sorts the indices (stable, CUB), adds the rows of dy in
// chunks of 32 sorted places, then the chunks of one index in order, in groups of 64 chunks first:
// an index that comes thousands of times costs no more than others. Rows of dx that no index names
// become 0, or stay when dx is added to. Memory: gather reads and writes y's rows once; the
// gradient reads dy once, writes dx.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct GatherExtent {
  int64_t outer = 1, n = 0, inner = 1, count = 0;
  DType index_dtype = DType::kInt64;
  const void* indices = nullptr;
  Fault fault = {};
};

cudaError_t gather(const GatherExtent& e, size_t size, const void* data, void* y,
                   cudaStream_t stream);

// Needs a device for CUB to answer; of planning.
size_t gather_grad_scratch(const GatherExtent& e);
// dx of `dtype` (float32, float16, bfloat16) as dy; summed in float32. accumulate: dx += instead.
cudaError_t gather_grad(const GatherExtent& e, DType dtype, const void* dy, void* dx,
                        bool accumulate, void* scratch, cudaStream_t stream);

// Tuples of `depth` int64 indices name slices after the leading axes that data and tuples have in
// common: rows[i] is the row of data, all axes in front of the slice joined, that tuple i names. So
// GatherND is a Gather of rows. `sizes` are those of the axes that a tuple indexes; `per_batch`
// tuples belong to each of the leading places.
struct TupleExtent {
  int64_t tuples = 0, per_batch = 1;
  int depth = 0;
  int64_t sizes[kMaxAxes] = {};
  const int64_t* indices = nullptr;
  Fault fault = {};
};
cudaError_t tuple_rows(const TupleExtent& e, int64_t* rows, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
