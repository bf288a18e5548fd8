// fuse: rewrites of a specialized graph into operators that do the same with fewer passes over
// memory. Exporters take apart what the graph's author wrote in one piece; here it comes together
// again.
//
// Each rewrite is a FusionRule in a file of its own. A rule looks at one node, the last of its
// pattern, and replaces it; nodes that nobody needs afterwards are dropped. Values that somebody
// else reads stay. Rules can be switched off by name, and tests compare both ways.
//
// `wanted` are the values that must stay: loss, gradients' sources, outputs. Graph::fused counts
// what was done, for the plan's print.
//
// Threads: any. Errors: none; a pattern that does not fit is left alone.
#pragma once

#include <set>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct FusionSettings {
  std::set<std::string> switched_off;
  // The least size of the tensors of an elementwise chain. Smaller ones stay in the cache between
  // two operators, whose loops of one operation are then as fast (docs/operators.md).
  size_t least_chain_bytes = size_t{8} << 20;
};

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted,
           const FusionSettings& settings = {});

std::vector<std::string> fusion_names();

}  // namespace ofsdp::importer
