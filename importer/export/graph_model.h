// Graphs written as ONNX models of standard operators. Errors: kInput naming the node.
#pragma once

#include <map>
#include <string>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

// graph_model writes a specialized graph as an ONNX model for other programs: standard operators
// stay, and each of our own becomes a function of the domain "ofsdp" with a body of standard
// operators.
//
// Parameters and constants become initializers; the loss weight is 1. Values get the names in
// `names` before any other, so outputs have the wanted names.
//
// Errors: kInput naming the node if an operator has no standard form, or if ONNX lacks an attribute
// or output; or for a model over protobuf's 2 GiB.
Result<std::string> graph_model(const Graph& graph, const OnnxFile& file,
                                const std::map<ValueId, std::string>& names);

// with_standard_outputs removes outputs that only our variants of standard operators have, for
// gradients: MaxPool its winners, which its Indices also give; BatchNormalization in training mode,
// GroupNormalization and InstanceNormalization their statistics, which new nodes compute again.
//
// Errors: kInput naming the node.
Result<Graph> with_standard_outputs(Graph graph);

// standard_body_graph returns the body of one of our operators (kernels/core/standard_body.h) for
// one node of a specialized graph, as a graph of standard operators. It has the present inputs of
// the node, in order, and the outputs.
//
// Errors: kInput naming the node if the operator has no body, or if the body cannot express it.
Result<Graph> standard_body_graph(const Graph& graph, const Node& node);

}  // namespace ofsdp::importer
