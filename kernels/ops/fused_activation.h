// Activations that ONNX Runtime's optimizers fuse into the product before them (FusedConv,
// FusedGemm): a name, and up to three numbers in the order of the operator's attributes.
//
// Another name is an input error.
#pragma once

#include "kernels/core/standard_body.h"

namespace ofsdp::kernels::ops {

// The activation that a node names; no name: none.
struct FusedActivation {
  std::string name;
  std::vector<float> numbers;  // missing ones have the operator's defaults
};

Status check_activation(const FusedActivation& activation);
Ref activated(BodyBuilder& b, Ref x, const FusedActivation& activation);
double reference_activated(const FusedActivation& activation, double x);

}  // namespace ofsdp::kernels::ops
