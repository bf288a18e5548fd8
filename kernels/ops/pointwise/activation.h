// The activation that fusion may join to a Gemm, a Conv or a MaxPool: attribute
// ofsdp_activation="relu" means that the output is max(result, 0), NaN kept.
//
// [Note: oneDNN's relu hides NaN] Its relu, clip and max post-ops give 0 for NaN, and a training
// run that has become NaN would go on unnoticed. So the relu is our own pass over the output, which
// is in the cache or on its way, and costs less than the separate operator with a tensor of its
// own.
//
// Threads: as Kernel. Owns: with_relu takes the kernel it wraps.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

inline constexpr const char* kActivationAttribute = "ofsdp_activation";

bool has_relu(const Attributes& attributes);
void reference_relu(std::vector<double>& values);

// `kernel`, then max(y, 0) over the float32 output 0 of `count` elements.
std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, int64_t count);

// The gradient of output 0 before the activation.
Ref activation_grad(GradBuilder& builder);

}  // namespace ofsdp::kernels::ops
