// The activation that fusion may join to a Gemm, a Conv or a MaxPool: if attribute ofsdp_activation
// is "relu", the output is max(result, 0), NaN kept.
//
// [Note: oneDNN's relu hides NaN] Its relu, clip and max post-ops turn NaN into 0, and a training
// run that has become NaN would go on unnoticed. So relu is our own pass over the output, which is
// still in the cache. It costs less than a separate operator with another tensor.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

inline constexpr const char* kActivationAttribute = "ofsdp_activation";

bool has_relu(const Attributes& attributes);
void reference_relu(std::vector<double>& values);

// Returns a kernel that runs `kernel`, then max(y, 0) over output 0: `count` float32 elements.
std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, int64_t count);

// Returns output 0's gradient before the activation.
Ref activation_grad(GradBuilder& builder);

// Gelu and the derivative in double: the oracle for every operator that computes them.

double reference_gelu(double x, bool tanh);
double reference_gelu_slope(double x, bool tanh);

}  // namespace ofsdp::kernels::ops
