// A verifier over a whole graph, of what every pass must leave:
//
//   nodes       have an operator that takes as many inputs and gives as many outputs
//   order       a value is an input, a parameter, a constant, the loss weight or made by an earlier
//               node, and by one node alone; no forward node comes after a backward one
//   descs       each operator gives the dtypes and shapes of the values at its outputs
//   parameters  a gradient is made by a node and has its parameter's dtype and shape
//   results     the terms of the loss, the next values of buffers, measures and, without a loss,
//               the outputs exist
//   inputs      have the axes that the file fixes
//
// Passes run one after another in importer/training_source.cpp and runtime/plan/run_plan.cpp; each
// ends with `checked("name", ...)`. That verifies the graph if the environment has
// OFSDP_VERIFY_PASSES=1, as CTest gives it to all tests, and in builds with a sanitizer. Every
// build verifies once, after the last pass: planning takes less than a hundredth longer.
//
// Threads: any. Errors: one line that names the pass and the node. kFault, a bug of the pass;
// kInput where the file's own axes contradict its nodes.
#pragma once

#include <string_view>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Status verify(const Graph& graph, std::string_view pass);

// The same of a graph with symbolic axes, where no operator can be asked.
Status verify_symbolic(const Graph& graph, std::string_view pass);

// Returns whether `checked` verifies.
bool verifies_each_pass();

// Returns the graph, or what verify says about it.
Result<Graph> checked(std::string_view pass, Result<Graph> graph);

Result<Graph> checked_symbolic(std::string_view pass, Result<Graph> graph);

// The same for a pass that changes a graph in place and has returned `done`.
Status checked(std::string_view pass, Status done, const Graph& graph);

}  // namespace ofsdp::importer
