// standard_body_graph: the body of an operator of our own (kernels/core/standard_body.h) for one
// node of a specialized graph, as a graph of standard operators. Its inputs are the node's inputs
// that are there, in their order; its outputs those that the node has.
//
// Threads: any. Errors: kInput naming the node where its operator has no body,
// or where the body cannot say it.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<Graph> standard_body_graph(const Graph& graph, const Node& node);

}  // namespace ofsdp::importer
