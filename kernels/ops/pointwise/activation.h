// The activation that fusion may join to a Gemm, a Conv or a MaxPool: attribute
// ofsdp_activation="relu" means that the output is max(result, 0), NaN kept.
//
// [Note: oneDNN's relu hides NaN] Its relu, clip and max post-ops give 0 for NaN, and a training
// run that has become NaN would go on unnoticed. So the relu is our own pass over the output, which
// is still in the cache. It costs less than a separate operator with another tensor.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

inline constexpr const char* kActivationAttribute = "ofsdp_activation";

bool has_relu(const Attributes& attributes);
void reference_relu(std::vector<double>& values);

// Returns a kernel that runs `kernel`, then max(y, 0) over the float32 output 0 of `count`
// elements.
std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, int64_t count);

// Returns the gradient of output 0 before the activation.
Ref activation_grad(GradBuilder& builder);

// Gelu and the derivative in double: the oracle of every operator that computes them.

double reference_gelu(double x, bool tanh);
double reference_gelu_slope(double x, bool tanh);

}  // namespace ofsdp::kernels::ops
