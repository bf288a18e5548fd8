// NormalizedModel: a model file ready to be read node by node. It is checked and converted to
// kOpset, its functions are inlined, its control flow is resolved. It computes in float32 when
// weights are stored in other types; its operators are in the domains where they are looked up.
//
// All members are values. Threads: any. Errors: kInput naming the file. Exceptions of the ONNX
// library end here.
#pragma once

#include <onnx/onnx_pb.h>

#include "importer/graph/lowering.h"
#include "importer/normalize/graph_rewriter.h"
#include "importer/normalize/module_scopes.h"
#include "importer/proto/opset.h"

namespace ofsdp::importer {

struct NormalizedModel {
  onnx::ModelProto proto;
  std::vector<std::string> initializers;  // their names before any conversion
  ModuleScopes scopes;
  Reasons reasons;  // of operators that could not be resolved
};

// `forward`: a serialized model in place of the file's skeleton; empty: the skeleton. Names and
// scopes of initializers are always those of the skeleton.
Result<NormalizedModel> normalized_model(const OnnxFile& file, const Operators& operators,
                                         const std::string& forward = "");

}  // namespace ofsdp::importer
