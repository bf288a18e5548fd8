// A graph that brings its own backward has Parameter::gradient and Graph::loss_weight before
// autodiff. Training artifacts of ONNX Runtime give such graphs.
//
// order_backward turns a specialized graph with its loss into one such as autodiff makes:
//   - nodes that the loss and running statistics need are forward, all others backward; forward
//     comes first, each part in the order of the file
//   - a forward node that reads only weights (Transpose of a weight) moves to its first reader, and
//     backward has its own copy: it reads the weight again, unsharded with its unit, instead of
//     keeping the result
//   - Identity nodes of backward go away; a node of its own writes the gradient of each parameter
// So backward nodes read the same parameters as the forward nodes they belong to; units, unshards
// and reductions follow from that as they do after autodiff.
//
// without_backward leaves the forward part, for evaluation.
//
// Pure; all values. Threads: any. Errors: kInput from inference.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

inline bool brings_backward(const Graph& graph) { return graph.loss_weight != 0; }

Result<Graph> order_backward(const Graph& graph);
Graph without_backward(const Graph& graph);

}  // namespace ofsdp::importer
