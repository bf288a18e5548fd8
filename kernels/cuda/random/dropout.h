// Dropout: drops the very elements that the CPU drops ([Note: what dropout draws] in kernels/core/philox.h).
//
// x, y: [samples, elements] of `dtype` (float32, float16, bfloat16); mask: a bool each (true: kept), null where not
// wanted. The numbers of the step lie in device memory, so that a captured graph sees those of its step. y may be x.
// The gradient is dropout_grad of the mask, or, without a mask, `dropout` of dy with the same numbers, which draws the
// same again and saves a byte an element both ways. Memory: x, y and mask once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct RandomInput {
  uint64_t seed = 0;
  int64_t step = 0;  // updates, from 0
};

struct DropoutCall {
  DType dtype = DType::kFloat32;
  int64_t samples = 1,
          elements =
              0;  // as the operator cuts them: one sample where samples do not divide the elements
  double ratio = 0.5;
  uint64_t node_seed = 0;
  const RandomInput* random = nullptr;    // device memory
  const int64_t* sample_index = nullptr;  // device memory, global index of each sample; null: 0
  const void* x = nullptr;
  void* y = nullptr;
  bool* mask = nullptr;
};
cudaError_t dropout(const DropoutCall& c, cudaStream_t stream);

cudaError_t dropout_grad(DType dtype, const void* dy, const bool* mask, void* dx, int64_t numel,
                         double ratio, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
