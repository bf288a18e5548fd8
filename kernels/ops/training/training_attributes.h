// Attributes of the ai.onnx.preview.training optimizers, for CPU and CUDA kernels. nvcc must be
// able to read this header; training_update.h fills the struct.
#pragma once

namespace ofsdp::kernels::ops {

struct TrainingAttributes {
  double norm = 0, norm_post = 0, alpha = 0, beta = 0, epsilon = 0, decay = 0;
  bool nesterov = false;
};

}  // namespace ofsdp::kernels::ops
