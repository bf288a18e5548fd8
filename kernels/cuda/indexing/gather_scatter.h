// Launchers for gathers and scatters. All are deterministic and free of atomics.
#pragma once

#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {

// --- Gather along an axis (embedding lookup), and the gradient.
//
// data [outer, n, inner], indices [count] (int32 or int64, negative ones count from the end), y
// [outer, count, inner]. The gradient sorts indices (stable, CUB) and sums equal ones in chunks of
// 32 sorted positions, then chunks in order, so frequent indices cost no more than rare ones.
// Without `accumulate`, dx rows that no index names become 0.
//
// Each row of y is moved once; the gradient reads dy and writes dx once.
struct GatherParams {
  int64_t outer = 1, n = 0, inner = 1, count = 0;
  DType index_dtype = DType::kInt64;
  const void* indices = nullptr;
  Fault fault = {};
};

cudaError_t gather(const GatherParams& e, size_t size, const void* data, void* y,
                   cudaStream_t stream);

// Call while planning: CUB asks the device.
size_t gather_grad_scratch(const GatherParams& e);
// dy and dx: float32, float16 or bfloat16; summed in float32. accumulate: dx += instead of dx =.
cudaError_t gather_grad(const GatherParams& e, DType dtype, const void* dy, void* dx,
                        bool accumulate, void* scratch, cudaStream_t stream);

// Converts GatherND tuples to row indices. Tuple i has `depth` int64 indices into axes with the
// given `sizes`, after leading batch axes that data and tuples share; each batch entry has
// `per_batch` tuples. rows[i] is the index of the named slice, with all axes before it flattened.
struct TupleParams {
  int64_t tuples = 0, per_batch = 1;
  int depth = 0;
  int64_t sizes[kMaxAxes] = {};
  const int64_t* indices = nullptr;
  Fault fault = {};
};
cudaError_t tuple_rows(const TupleParams& e, int64_t* rows, cudaStream_t stream);

// --- GatherElements, ScatterElements, ScatterND.
//
// Scatters sort row indices (stable, sort.h), then one thread per element applies the updates of
// its row, in index order as on the CPU. Exception: float additions are first summed in chunks of
// 256 sorted positions, then over chunks. For the other reductions an index that occurs thousands
// of times is slow.
//
// All dtypes if updates replace; add, mul, max and min take float32, float16, bfloat16 (computed in
// float32, rounded once per row), float64, int32 and int64 (wrapping). max and min propagate NaN.
//
// Sorting takes 40 bytes per index; each update and each named row moves once.
//
// Index element i refers to data element walk(i) + index * step; `walk` omits the indexed axis.
struct ElementParams {
  StridedIndex walk = {};
  int64_t n = 0, step = 1;  // the indexed axis of data
  DType index_dtype = DType::kInt64;
  const void* indices = nullptr;
  Fault fault = {};
};
cudaError_t gather_elements(const ElementParams& e, size_t size, const void* data, void* y,
                            cudaStream_t stream);
// Stores the data offset of each index element.
cudaError_t element_rows(const ElementParams& e, int64_t* rows, cudaStream_t stream);

// rows[i] = position of element indices[i] of the walked tensor in another tensor (operand 0 of the
// walk).
cudaError_t mapped_rows(const StridedIndex& walk, const int64_t* indices, int64_t count,
                        Fault fault, int64_t* rows, cudaStream_t stream);

enum class ScatterKind { kNone, kAdd, kMul, kMax, kMin };

struct ScatterParams {
  ScatterKind kind = ScatterKind::kNone;
  DType dtype = DType::kFloat32;
  int64_t rows = 0, inner = 1;  // data is [rows, inner]
  int64_t count = 0;            // updates are [count, inner]
};
bool can_scatter(const ScatterParams& e);
size_t scatter_scratch(const ScatterParams& e);  // call while planning: CUB asks the device
// REQUIRES: y holds a copy of data. rows [count]: device memory.
cudaError_t scatter(const ScatterParams& e, const int64_t* rows, const void* updates, void* y,
                    void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
