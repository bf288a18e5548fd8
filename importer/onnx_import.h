// import_onnx: converts an OnnxFile into a Graph with symbolic input axes.
//
// Steps: check the model; inline its functions; convert it to kOpset; make it float32 when weights
// are stored in another type (compute_types.h); read nodes, constants and parameters. Weights never
// pass through here: the skeleton declares them as inputs (importer/file/onnx_file.h), so the
// converter's copies of the model are small.
//
// The operators must outlive the graph; weights are read from the file later. Threads: any.
// Errors: kInput naming the file; one message lists all unknown operators with their nodes.
#pragma once

#include "importer/file/onnx_file.h"
#include "importer/graph/lowering.h"
#include "importer/proto/opset.h"

namespace ofsdp::importer {

// `forward`: a serialized model to import in place of the file's skeleton; it has the same weights.
// Empty: the skeleton.
Result<Graph> import_onnx(const OnnxFile& file, const Operators& operators,
                          const std::string& forward = "");

// An operator of the file that nobody knows, for a plug-in to supply: the most inputs and outputs
// that a node has, and its attributes.
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
