// Reads the attributes of the ai.onnx.preview.training optimizers for the kernels.
#pragma once

#include "kernels/core/kernel.h"
#include "kernels/ops/training/training_attributes.h"

namespace ofsdp::kernels::ops {

inline constexpr const char* kTrainingDomain = "ai.onnx.preview.training";

inline TrainingAttributes training_attributes(const Attributes& a) {
  return {a.f("norm_coefficient", 0),
          a.f("norm_coefficient_post", 0),
          a.f("alpha", 0.9f),
          a.f("beta", 0.999f),
          a.f("epsilon", 1e-6f),
          a.f("decay_factor", 0),
          a.s("mode", "standard") == "nesterov"};
}

}  // namespace ofsdp::kernels::ops
