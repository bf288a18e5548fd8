// expand_body: nodes of an operator's body (kernels/core/lowered.h) in place of one node of a graph
// that is being specialized. Each new node goes through `take`, as the nodes of the file do: it is
// folded or appended to the graph, and its outputs get their shapes.
//
// REQUIRES: the node's operator has a body; the shapes of the node's inputs are known.
// Threads: one. Errors: kInput with file and node; those of `take`.
#pragma once

#include <functional>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

using TakeNode = std::function<Status(Node)>;

Status expand_body(Graph& graph, const Node& node, const TakeNode& take);

}  // namespace ofsdp::importer
