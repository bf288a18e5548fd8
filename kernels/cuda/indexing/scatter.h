// GatherElements; ScatterElements and ScatterND: data with updates put on the rows that indices
// name, in the order of the indices, without atomics: rows are sorted (stable, sort.h), then one
// thread an element walks the updates of its row. So the bits are those of a loop over the indices,
// as on the CPU, but for floats that are added onto a row by updates of more than one chunk of 256
// sorted places: chunks are summed first. Of other reductions an index that comes thousands of
// times is a long walk.
//
// Takes every type; combined (add, mul, max, min) are float32, float16, bfloat16 (in float32,
// rounded once a row), float64, int32 and int64 (which wrap). NaN on either side of max and min
// stays.
// Memory: gather reads an index and an element and writes one; scatter 40 bytes an index for the
// sort, and each update and each row that is named once.
#pragma once

#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

// Element i of the index tensor names element walk(i) + index * step of the data; the walk leaves
// the axis out.
struct ElementExtent {
  Walk walk = {};
  int64_t n = 0, step = 1;  // of the axis of the data
  DType index_dtype = DType::kInt64;
  const void* indices = nullptr;
  Fault fault = {};
};
cudaError_t gather_elements(const ElementExtent& e, size_t size, const void* data, void* y,
                            cudaStream_t stream);
// Its elements of the data, as rows of one element.
cudaError_t element_rows(const ElementExtent& e, int64_t* rows, cudaStream_t stream);

// rows[i] is where element indices[i] of a tensor, over which the walk goes, lies in another (its
// operand 0).
cudaError_t moved_rows(const Walk& walk, const int64_t* indices, int64_t count, Fault fault,
                       int64_t* rows, cudaStream_t stream);

enum class ScatterKind { kNone, kAdd, kMul, kMax, kMin };

struct ScatterExtent {
  ScatterKind kind = ScatterKind::kNone;
  DType dtype = DType::kFloat32;
  int64_t rows = 0, inner = 1;  // of the data
  int64_t count = 0;            // of updates of `inner` elements
};
bool can_scatter(const ScatterExtent& e);
size_t scatter_scratch(const ScatterExtent& e);  // needs a device, of planning
// y begins as the data; rows [count] in device memory.
cudaError_t scatter(const ScatterExtent& e, const int64_t* rows, const void* updates, void* y,
                    void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
