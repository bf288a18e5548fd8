// `If` with a condition that is known while importing (see known_values.h): the branch that runs
// takes its place. https://onnx.ai/onnx/operators/onnx__If.html
//
// Weights inside of a branch become constants: only those of the main graph are trained.
#pragma once

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
