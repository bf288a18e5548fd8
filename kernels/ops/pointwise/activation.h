// The activation that the fusion pass may fuse into a Gemm, a Conv or a MaxPool: if attribute
// ofsdp_activation is "relu", the output is max(result, 0); NaN stays NaN.
//
// [Note: oneDNN's relu hides NaN] oneDNN's relu, clip and max post-ops turn NaN into 0, and nobody
// would notice that training has diverged to NaN. So relu is our own pass over the output, which is
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

// Returns the gradient of the result before the activation, from output 0's gradient; the same if
// there is no activation.
Ref activation_grad(GradBuilder& builder);

// Gelu and the derivative in double: the oracle for every operator that computes them.

double reference_gelu(double x, bool tanh);
double reference_gelu_slope(double x, bool tanh);

}  // namespace ofsdp::kernels::ops
