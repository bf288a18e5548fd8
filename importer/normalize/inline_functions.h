// Operators that ONNX defines as functions of others, where there is no kernel for them: the body
// in place of the node. Bodies of older opsets are converted to the model's where an operator in
// them has changed since.
//
// Ownership: values. Threads: one at a time. Errors: `function_body` gives none when the operator
// is no function or its body cannot be had (its input types are not known). Exceptions of the ONNX
// library end here.
#pragma once

#include <optional>

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

std::optional<std::vector<onnx::NodeProto>> function_body(GraphRewriter& rewriter,
                                                          const onnx::NodeProto& node);

// Puts the model's own functions in place of their calls.
Status inline_local_functions(onnx::ModelProto& model);

}  // namespace ofsdp::importer
