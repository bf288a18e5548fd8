// Verifies a whole graph's invariants, which every pass must keep:
//
//   nodes       have an operator that takes as many inputs and gives as many outputs
//   order       a value is an input, a parameter, a constant, the loss weight, or made by exactly
//               one earlier node; no forward node follows a backward one
//   descs       output values have the dtypes and shapes that operators infer
//   parameters  if one has a gradient, a node makes it, with the parameter's dtype and shape
//   results     loss terms, next buffer values, measures and, without a loss,
//               the outputs exist
//   inputs      have the axes that the file fixes
//
// run_passes (importer/pipeline.h) calls `checked` after each pass. `checked` verifies the graph
// only in builds with a sanitizer, and if the environment has OFSDP_VERIFY_PASSES=1, as CTest sets
// it for all tests. Every build verifies once, after the last pass, which adds less than 1 % to
// planning.
//
// Errors: one line that names pass and node; kFault for a bug in the pass, kInput if the axes that
// the file fixes contradict the nodes.
#pragma once

#include <string_view>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Status verify(const Graph& graph, std::string_view pass);

// The same for a graph with symbolic axes, whose shapes operators cannot infer yet.
Status verify_symbolic(const Graph& graph, std::string_view pass);

// Returns whether `checked` verifies.
bool verifies_each_pass();

// Returns the graph, or `verify`'s error.
Result<Graph> checked(std::string_view pass, Result<Graph> graph);

// The same for a pass that changes a graph in place; `done`: what the pass has returned.
Status checked(std::string_view pass, Status done, const Graph& graph);
Status checked_symbolic(std::string_view pass, Status done, const Graph& graph);

}  // namespace ofsdp::importer
