// autodiff: adds the backward nodes of a specialized training graph, by reverse accumulation over
// its nodes; the rule of each operator is its OpDef's grad.
//
// Starts from graph.loss (a float32 scalar) with graph.loss_weight as its gradient. Sets
// Parameter::gradient of every trained parameter that a gradient reaches (0 for the others). A
// value used several times gets the sum of its gradients in the order of the uses from last to
// first, so the bits depend on nothing else. A node of its own writes the gradient of a parameter
// (it is never a view), so that the planner can let it write where the reduction reads.
//
// Returns a new graph. Threads: any. Errors: kInput listing every node between a trained parameter
// and the loss whose operator has no gradient.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<Graph> autodiff(const Graph& graph);

}  // namespace ofsdp::importer
