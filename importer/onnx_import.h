// import_onnx converts an OnnxFile into a Graph with symbolic input axes.
//
// It checks the model, inlines functions, converts to kOpset, makes the model float32 if weights
// have another type (compute_in_float32), and reads nodes, constants and parameters. Weights never
// pass through here: the skeleton declares them as inputs (importer/file/onnx_file.h), so the
// converter's copies of the model are small.
//
// The operators must outlive the graph. Errors: kInput naming the file; one message lists all
// unknown operators with their nodes.
#pragma once

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/proto/opset.h"

namespace ofsdp::importer {

// `forward`: a serialized model with the same weights that replaces the skeleton; empty: the
// skeleton.
Result<Graph> import_onnx(const OnnxFile& file, const Operators& operators,
                          const std::string& forward = "");

// An unknown operator of the file, for a plug-in to supply: attributes, and maximum numbers of
// inputs and outputs of a node.
struct MissingOperator {
  std::string domain;
  std::string name;
  size_t inputs = 0;
  size_t outputs = 0;
  Attributes attributes;
};
Result<std::vector<MissingOperator>> missing_operators(const OnnxFile& file,
                                                       const Operators& operators);

}  // namespace ofsdp::importer
