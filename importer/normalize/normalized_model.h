// A model file ready to be read node by node: checked and converted to kOpset, with functions
// inlined and control flow resolved. It computes in float32 even if weights have other types, and
// the operators have the domains of the registry.
//
// Errors: kInput naming the file. Catches the exceptions of the ONNX library.
#pragma once

#include <onnx/onnx_pb.h>

#include "importer/graph/graph.h"
#include "importer/normalize/graph_rewriter.h"
#include "importer/normalize/module_scopes.h"
#include "importer/proto/opset.h"

namespace ofsdp::importer {

struct NormalizedModel {
  onnx::ModelProto proto;
  std::vector<std::string> initializers;  // names before any conversion
  ModuleScopes scopes;
  Reasons reasons;  // for operators that could not be resolved
};

// `forward`: a serialized model that replaces the skeleton of the file; empty: the skeleton. Names
// and scopes of initializers always come from the skeleton.
Result<NormalizedModel> normalized_model(const OnnxFile& file, const Operators& operators,
                                         const std::string& forward = "");

}  // namespace ofsdp::importer
