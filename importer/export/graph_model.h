// Graphs written as ONNX models of standard operators.
//
// Threads: any. Errors: kInput naming the node.
#pragma once

#include <map>
#include <string>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

// graph_model: a specialized graph as an ONNX model that others read: standard operators as they
// are, each operator of our own as a function of the domain "ofsdp" whose body is standard
// operators.
//
// Parameters and constants become initializers; the loss weight is 1. `names` are given to values
// before any other, so that outputs are called what they should be.
//
// Threads: any. Errors: kInput naming the node: an operator without a standard
// form, an attribute or output that ONNX does not have; a model over protobuf's 2 GiB.
Result<std::string> graph_model(const Graph& graph, const OnnxFile& file,
                                const std::map<ValueId, std::string>& names);

// with_standard_outputs: a graph in which standard operators have only the outputs that the
// standard gives them. Ours leave more for their gradients: MaxPool its winners, which its Indices
// say too; BatchNormalization in training mode, GroupNormalization and InstanceNormalization the
// statistics they have used, which nodes after them compute once more.
//
// Threads: any. Errors: kInput naming the node.
Result<Graph> with_standard_outputs(Graph graph);

// standard_body_graph: the body of an operator of our own (kernels/core/standard_body.h) for one
// node of a specialized graph, as a graph of standard operators. Its inputs are the node's inputs
// that are there, in their order; its outputs those that the node has.
//
// Threads: any. Errors: kInput naming the node where its operator has no body,
// or where the body cannot say it.
Result<Graph> standard_body_graph(const Graph& graph, const Node& node);

}  // namespace ofsdp::importer
