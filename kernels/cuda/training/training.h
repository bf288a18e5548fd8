// The optimizers of ai.onnx.preview.training on a tensor;
// kernels/ops/training/training_update.cpp has the formulas. Float32; rate and count of
// updates are read from device memory, and what follows from them is computed in double, once a
// block. New values may lie where the old ones do.
//
// Memory: Adam 28 bytes an element, the others 20.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/training/training_attributes.h"

namespace ofsdp::kernels::cuda {

enum class Training { kAdam, kAdagrad, kMomentum };

struct TrainingTensors {  // of Adagrad and Momentum the first state alone
  const float* x;
  const float* gradient;
  const float* states[2];
  float* new_x;
  float* new_states[2];
  int64_t count;
};

cudaError_t training_update(Training kind, const ops::TrainingAttributes& attributes,
                            const float* rate, const int64_t* updates,
                            const TrainingTensors& tensors, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
