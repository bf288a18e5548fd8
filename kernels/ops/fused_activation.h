// Activations that ONNX Runtime's optimizers fuse into the preceding product (FusedConv,
// FusedGemm).
#pragma once

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

// An activation, named by an operator; an empty name means none.
struct FusedActivation {
  std::string name;
  // In the order of the operator's attributes; missing ones have defaults.
  std::vector<float> numbers;
};

// Returns an input error if no such activation is known.
Status check_activation(const FusedActivation& activation);
// Emits activation(x); returns x if there is none.
Ref activated(BodyBuilder& b, Ref x, const FusedActivation& activation);
double reference_activated(const FusedActivation& activation, double x);

}  // namespace ofsdp::kernels::ops
