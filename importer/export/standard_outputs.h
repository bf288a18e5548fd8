// with_standard_outputs: a graph in which standard operators have only the outputs that the
// standard gives them. Ours leave more for their gradients: MaxPool its winners, which its Indices
// say too; BatchNormalization in training mode, GroupNormalization and InstanceNormalization the
// statistics they have used, which nodes after them compute once more.
//
// Threads: any. Errors: kInput naming the node.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<Graph> with_standard_outputs(Graph graph);

}  // namespace ofsdp::importer
