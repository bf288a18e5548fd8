// From which opset on ONNX's converter brings an operator of ai.onnx to kOpset: what the table of
// operators may promise.
// Threads: any. Errors: none.
#pragma once

#include <string>

namespace ofsdp::importer {

// 1 for a name that ONNX does not have.
int oldest_opset(const std::string& op);

}  // namespace ofsdp::importer
