// import_onnx: an OnnxFile made into a Graph with symbolic input axes.
//
// In order: the checker; functions of the model inlined; the version converter up to kOpset; float32
// where weights are stored in other types (compute_types.h); then nodes, constants and parameters. Weights never pass through here: the skeleton declares them as
// inputs (importer/file/onnx_file.h), so the converter's copies of the model are small.
//
// Ownership: the registry must outlive the graph; the file is needed later to read weights from.
// Threads: any. Errors: kInput with the file; every operator that is unknown is in one message,
// with the names of its nodes.
#pragma once

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

inline constexpr int kOpset = 28;  // the newest of the ONNX library that is built in

// kWithLoss: with what the loss of a training_info needs, where the file has one.
enum class ImportedPart { kModel, kWithLoss };
Result<Graph> import_onnx(const OnnxFile& file, const Registry& registry,
                          ImportedPart part = ImportedPart::kModel);

// What a plug-in would have to supply: the operators of the file that the registry does not know,
// with the most inputs and outputs that a node has, and its attributes.
struct MissingOperator {
  std::string domain;
  std::string name;
  size_t inputs = 0;
  size_t outputs = 0;
  Attributes attributes;
};
Result<std::vector<MissingOperator>> missing_operators(const OnnxFile& file,
                                                       const Registry& registry);

}  // namespace ofsdp::importer
