// Running sums (CumSum) or products (CumProd) along an axis, of float32, float16, bfloat16 (in float32), int32 and int64 (which wrap).
//
// x, y: [outer, n, inner]; exclusive: an element is not in its own sum; reverse: from the end. A thread a line, so that
// the order of additions is plain: for masks and positions, not for long lines. y may be x. Memory: x and y once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct ScanExtent {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, n = 0, inner = 1;
  bool exclusive = false, reverse = false;
  bool product = false;
};
bool has_running_sum(DType dtype);
cudaError_t running_sum(const ScanExtent& e, const void* x, void* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
