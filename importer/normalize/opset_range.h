// ONNX's version converter: a model in another opset, and the opset from which on the converter
// brings an operator of ai.onnx to kOpset, which the table of operators promises. Its header
// defines every adapter, so one source includes it.
//
// Threads: any. Errors: convert_version throws what ONNX throws for a model it cannot convert.
#pragma once

#include <string>

namespace onnx {
class ModelProto;
}

namespace ofsdp::importer {

// A copy of `model`, which is in opset `from` of ai.onnx.
onnx::ModelProto convert_version(const onnx::ModelProto& model, int from, int to);

// 1 for a name that ONNX does not have.
int oldest_opset(const std::string& op);

}  // namespace ofsdp::importer
