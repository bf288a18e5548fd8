// Gradients in a graph that ran, node by node, on the values of that run: the rule of each
// operator, by references in double, against central differences of the operator's reference
// (tests/support/op_check.h, check_gradient). Values at a kink, where the first try differs, are
// moved by 1e-3.
//
// Threads: one. Errors: none; `why` holds the difference.
#pragma once

#include <string>

#include "tests/nodes/interpreter.h"

namespace ofsdp::nodes {

enum class GradientVerdict {
  kNothing,     // no node with finite floating inputs and floating outputs
  kAgrees,      // all nodes
  kNoGradient,  // no gradient for the node, or none for a floating input
  kDiffers
};

GradientVerdict check_gradients(const Graph& graph, Interpreter& values, std::string& why);

}  // namespace ofsdp::nodes
