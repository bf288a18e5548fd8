// Cuts a failing graph down to the fewest nodes that still fail, and keeps it as text: comment
// lines, then the model in ONNX's textual form.
//
// Threads: one. Errors: none; `parsed` throws std::runtime_error for a text that is no model.
#pragma once

#include <functional>

#include "tests/graphs/drawn_graph.h"
#include "tests/graphs/trial.h"

namespace ofsdp::graphs {

using Fails = std::function<bool(const DrawnGraph&)>;

// Takes nodes out one by one: a reader gets an operand with the same shape, or a fresh weight with
// the node's numbers.
DrawnGraph shrunk(const DrawnGraph& graph, const Fails& fails);

struct FoundGraph {
  Model model;
  std::string way;
};
std::string text_of(const DrawnGraph& graph, uint64_t seed, const std::string& way);
FoundGraph parsed(const std::string& text);

}  // namespace ofsdp::graphs
