// Operators without a kernel of their own, or without one for some attributes: while planning, the
// body in standard operators (OpDef::body) replaces every such node. So they have the gradients,
// kernels and fusions of these operators.
#pragma once

#include "kernels/core/op_def.h"

namespace ofsdp::kernels {

// Attribute of com.microsoft.NhwcConv and NhwcFusedConv: 1 if the weights are
// [M, kernel..., C / group], 0 if they are [M, C / group, kernel...].
inline constexpr const char* kNhwcWeightsLast = "ofsdp_weights_last";

// Has no kernel and is no view: the body takes the place of every node.
inline bool is_composite(const OpDef& op) {
  return op.body != nullptr && op.cpu.empty() && !op.view;
}

// Returns whether the body replaces a node with these attributes.
inline bool is_lowered(const OpDef& op, const Attributes& attributes) {
  if (op.body == nullptr || op.domain == kOwnDomain) return false;
  const bool transposed_batch =
      attributes.i("transBatchA", 0) != 0 || attributes.i("transBatchB", 0) != 0;
  return is_composite(op) || transposed_batch;  // of com.microsoft.FusedMatMul
}

}  // namespace ofsdp::kernels
