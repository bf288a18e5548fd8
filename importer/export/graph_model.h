// graph_model: a specialized graph as an ONNX model that others read: standard operators as they
// are, each operator of our own as a function of the domain "ofsdp" whose body is standard
// operators.
//
// Parameters and constants become initializers; the loss weight is 1. `names` are given to values
// before any other, so that outputs are called what they should be.
//
// Threads: any. Errors: kInput naming the node: an operator without a standard
// form, an attribute or output that ONNX does not have; a model over protobuf's 2 GiB.
#pragma once

#include <map>
#include <string>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<std::string> graph_model(const Graph& graph, const OnnxFile& file,
                                const std::map<ValueId, std::string>& names);

}  // namespace ofsdp::importer
