// fuse rewrites a specialized graph into operators that compute the same with fewer passes over
// memory. Exporters take apart layers that the author of the graph wrote in one piece; fuse joins
// them again.
//
// A FusionRule looks at one node, the last of its pattern, and replaces it. Nodes that nothing
// needs afterwards are dropped; values with other readers stay. Tests switch rules off by name and
// compare both ways.
//
// `wanted` are the values that must stay: loss, next values of buffers, outputs. Graph::fused
// counts the rewrites, for the printed plan. A pattern that does not fit is left alone.
#pragma once

#include <set>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct FusionSettings {
  std::set<std::string> switched_off;
  // The minimum size of tensors in an elementwise chain. Smaller ones stay in the cache between two
  // operators; their simple loops are then as fast (docs/operators.md).
  size_t least_chain_bytes = size_t{8} << 20;
};

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted,
           const FusionSettings& settings = {});

std::vector<std::string> fusion_names();

}  // namespace ofsdp::importer
