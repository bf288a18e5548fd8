// Graphs written as ONNX models with standard operators. Errors: kInput naming the node.
#pragma once

#include <map>
#include <string>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

// graph_model writes a specialized graph as an ONNX model for other programs: standard operators
// stay, and each operator of ours becomes a function in the domain "ofsdp" with standard operators
// in the body.
//
// Parameters and constants become initializers; the loss weight is 1. Values get the names in
// `names` before any other, so outputs have the wanted names.
//
// Errors: kInput naming the node if an operator has no standard form, or if ONNX lacks an attribute
// or output; or for a model over protobuf's 2 GiB.
Result<std::string> graph_model(const Graph& graph, const OnnxFile& file,
                                const std::map<ValueId, std::string>& names);

// with_standard_outputs removes outputs that only our variants of standard operators have, for
// gradients: MaxPool's winners, which Indices also give; the statistics that BatchNormalization in
// training mode, GroupNormalization and InstanceNormalization give, which new nodes compute again.
//
// Errors: kInput naming the node.
Result<Graph> with_standard_outputs(Graph graph);

// standard_body_graph returns an own operator's body (kernels/core/op_def.h) for one node in
// a specialized graph, as a graph of standard operators. It has the node's present inputs, in
// order, and the outputs.
//
// Errors: kInput naming the node if the operator has no body, or if the body cannot express it.
Result<Graph> standard_body_graph(const Graph& graph, const Node& node);

}  // namespace ofsdp::importer
