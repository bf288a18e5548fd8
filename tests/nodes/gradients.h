// Gradients of a graph that ran, node by node, on the values that it ran on: the rule of each
// operator, by references in double, against central differences of its reference
// (tests/support/op_check.h, check_gradient). Values at a kink, where the first try differs, are
// moved by 1e-3.
//
// Threads: one. Errors: none; `why` says what differs.
#pragma once

#include <string>

#include "tests/nodes/interpreter.h"

namespace ofsdp::nodes {

enum class GradientVerdict {
  kNothing,     // no node with finite floating inputs and floating outputs
  kAgrees,      // all nodes
  kNoGradient,  // a node has none, or none for one of its floating inputs
  kDiffers
};

GradientVerdict check_gradients(const Graph& graph, Interpreter& values, std::string& why);

}  // namespace ofsdp::nodes
