// Activations that ONNX Runtime's optimizers join with the product in front of them (FusedConv,
// FusedGemm): a name, and up to three numbers in the order of the operator's attributes.
//
// Values; any thread. Errors: kInput for a name that is none of these.
#pragma once

#include "kernels/core/standard_body.h"

namespace ofsdp::kernels::ops {

// The activation as a node says it; no name: none.
struct FusedActivation {
  std::string name;
  std::vector<float> numbers;  // fewer than the operator has: the rest are its defaults
};

Status check_activation(const FusedActivation& activation);
Ref activated(BodyBuilder& b, Ref x, const FusedActivation& activation);
double reference_activated(const FusedActivation& activation, double x);

}  // namespace ofsdp::kernels::ops
