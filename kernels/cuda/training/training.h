// Adam, Adagrad and Momentum of ai.onnx.preview.training on one float32 tensor;
// kernels/ops/training/training_update.cpp has the formulas. Learning rate and update count are in
// device memory; factors that depend on them are double, once per block. New values may alias old
// ones. Adam moves 28 bytes per element, the others 20.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/training/training_attributes.h"

namespace ofsdp::kernels::cuda {

enum class Training { kAdam, kAdagrad, kMomentum };

struct TrainingTensors {  // Adagrad and Momentum: states[0] only
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
