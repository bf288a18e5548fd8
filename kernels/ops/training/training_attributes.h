// The attributes of the optimizers of ai.onnx.preview.training, as CPU and CUDA kernels compute
// with them (training_update.h reads them): nothing here that nvcc cannot read.
#pragma once

namespace ofsdp::kernels::ops {

struct TrainingAttributes {
  double norm = 0, norm_post = 0, alpha = 0, beta = 0, epsilon = 0, decay = 0;
  bool nesterov = false;
};

}  // namespace ofsdp::kernels::ops
