// autodiff: adds the backward nodes of a specialized training graph, by reverse accumulation over
// its nodes; the rule of each operator is its OpDef's grad.
//
// Starts from graph.loss (a float32 scalar) with graph.loss_weight as its gradient, ends with
// Parameter::gradient of every trained parameter that a gradient reaches (0 for the others). A
// value used several times gets the sum of its gradients in the order of the uses from last to
// first, so the bits do not depend on anything else. The gradient of a parameter is written by a
// node of its own (never a view of something else), so that the planner can let it write where the
// reduction reads.
//
// Errors: kInput listing every node between a trained parameter and the loss whose operator has no
// gradient. Ownership, threads: as Graph.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<Graph> autodiff(const Graph& graph);

}  // namespace ofsdp::importer
