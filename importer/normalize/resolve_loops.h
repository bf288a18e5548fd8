// `Loop` and `Scan` with a number of iterations that is known while importing: unrolled. A Loop
// ends where its condition becomes false, which must be known in every iteration.
// https://onnx.ai/onnx/operators/onnx__Loop.html, https://onnx.ai/onnx/operators/onnx__Scan.html
#pragma once

#include "importer/normalize/graph_rewriter.h"

namespace ofsdp::importer {

inline constexpr int64_t kMostIterations = 4096;

Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node);

}  // namespace ofsdp::importer
