// Softmax and its logarithm along one axis, and their gradients; kernels/cpu/softmax.h has the formulas.
//
// Tensors are [outer, classes, inner] of `dtype` (float32, float16, bfloat16), any alignment. y may be x; dx may be dy or y.
// Rows (inner 1) of up to 8192 classes are read once; longer ones twice, the second time from the cache. With inner > 1 a
// thread takes a column.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct SoftmaxExtent {
  DType dtype = DType::kFloat32;
  int64_t outer = 1, classes = 1, inner = 1;
  bool log = false;
};

cudaError_t softmax(const SoftmaxExtent& e, const void* x, void* y, cudaStream_t stream);
cudaError_t softmax_grad(const SoftmaxExtent& e, const void* dy, const void* y, void* dx,
                         cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
