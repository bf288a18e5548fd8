// Runs one node while planning, on inputs that are constants (or, of operators that read shapes
// alone, have a shape): its outputs become constants of the graph.
//
// Ownership: the graph's. Threads: one at a time. Errors: those of the kernel, with file and node.
#pragma once

#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Status fold(Graph& graph, const Node& node);

// The same without a graph: the node's operator and attributes on these inputs (null: absent), its
// first output.
Result<ConstantPtr> fold_one(const Registry& registry, const Node& node,
                             const std::vector<ConstantPtr>& inputs);

}  // namespace ofsdp::importer
