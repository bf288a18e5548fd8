// TopK, ArgMax and ArgMin: the best elements of lines, and where they are.
//
// x [outer, n, inner]; y and indices [outer, k, inner], best first, of equal ones the first
// (`last`: the last) index first. TopK counts NaN as the largest number, ArgMax and ArgMin as the
// extreme (`nan_first`). float32, float16, bfloat16, float64, int32, int64. Few of a line are found
// by k walks over it, by a warp or, where lines lie side by side, by a thread; many by a sort of
// all lines (sort.h; not of 64-bit elements). Memory: x k times from the cache; sorted: some 100
// bytes an element.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct TopExtent {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, n = 0, inner = 1, k = 1;
  bool largest = true, last = false, nan_first = false;
};
bool has_top(DType dtype);
size_t top_scratch(const TopExtent& e);  // needs a device, of planning
// y or indices may be null.
cudaError_t top(const TopExtent& e, const void* x, void* y, int64_t* indices, void* scratch,
                cudaStream_t stream);

// y [outer, n, inner] is 1 where the index is that of its line [outer, inner], 0 elsewhere.
cudaError_t mark_index(const TopExtent& e, const int64_t* indices, void* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
