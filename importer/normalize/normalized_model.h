// NormalizedModel: a model file ready to be read node by node: checked, functions inlined, converted
// to kOpset, in float32 where weights are stored in other types, operators in the domains where the
// registry looks for them, control flow resolved.
//
// Ownership: values. Threads: any. Errors: kInput with the file. Exceptions of the ONNX library end
// here.
#pragma once

#include <onnx/onnx_pb.h>

#include "importer/normalize/graph_rewriter.h"
#include "importer/normalize/module_scopes.h"
#include "importer/onnx_import.h"

namespace ofsdp::importer {

struct NormalizedModel {
  onnx::ModelProto proto;
  std::vector<std::string> initializers;  // their names before any conversion
  ModuleScopes scopes;
  Reasons reasons;  // of operators that could not be resolved
};

Result<NormalizedModel> normalized_model(const OnnxFile& file, const Registry& registry,
                                         ImportedPart part);

}  // namespace ofsdp::importer
