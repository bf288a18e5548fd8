// Einsum by loops, for what is no product of matrices: diagonals, traces, sums of one operand, more
// than two operands.
//
// Every combination of the outer labels has an element of y, a warp sums over the others: y[outer]
// = sum over summed of the product of the operands. Walks: operand 0 is y (of outer alone), 1 ..
// count the operands. float32, float16, bfloat16, in float32, in one order. Memory: as the cache
// allows; nothing is laid out anew.
#pragma once

#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

struct EinsumExtent {
  DType dtype = DType::kFloat32;
  Walk outer, summed;
  int count = 1;  // operands, kMaxOperands - 1 at most
  const void* operands[kMaxOperands - 1] = {};
};
cudaError_t einsum_loops(const EinsumExtent& e, void* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
