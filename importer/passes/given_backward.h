// A graph that brings its own backward (Parameter::gradient and Graph::loss_weight before any
// autodiff: importer/dialects/onnxruntime/ort_artifacts.h), made one such as autodiff gives.
//
// order_backward, on a specialized graph with its loss:
//   - what the loss and running statistics need is forward, all else backward; forward stands first,
//     each part in the order of the file
//   - forward nodes that only weights go into (Transpose of a weight) stand where they are first read,
//     and backward has its own of them: it reads the weight again, gathered with its unit, instead of
//     keeping what was made of it
//   - Identity nodes of backward go away; a gradient of a parameter is written by a node of its own
// So backward nodes read the same parameters as the forward nodes they belong to, and units, gathers
// and reductions follow from that as they do after autodiff.
//
// without_backward leaves the forward part, for evaluation.
//
// Pure. Ownership: values. Threads: any. Errors: kInput from inference.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

inline bool brings_backward(const Graph& graph) { return graph.loss_weight != 0; }

Result<Graph> order_backward(const Graph& graph);
Graph without_backward(const Graph& graph);

}  // namespace ofsdp::importer
