// Control flow that is resolved while importing, because what it depends on is known
// (known_values.h).
//
//   If          the branch that runs takes its place
//   Loop, Scan  unrolled; a Loop ends when its condition becomes false, which must be known in
//               every iteration
//
// Weights inside of a branch or body become constants: only those of the main graph are trained.
// https://onnx.ai/onnx/operators/onnx__If.html, https://onnx.ai/onnx/operators/onnx__Loop.html,
// https://onnx.ai/onnx/operators/onnx__Scan.html
#pragma once

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
