// Converts a model to a newer opset, and tells the oldest opset from which an operator of ai.onnx
// can be converted, which the table of operators promises. Each step uses our own rules
// (opset_rules.h), else the adapters of ONNX's version converter. The converter's header defines
// every adapter, so only one source includes it.
//
// Errors: kInput naming the node and the opset.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace onnx {
class ModelProto;
}

namespace ofsdp::importer {

// Returns the elements of a small floating-point initializer, which a skeleton lacks, if it exists.
using FloatsOf = std::function<std::optional<std::vector<float>>(const std::string& name)>;

// Returns a copy of `model`, which is in opset `from` of ai.onnx. Infers shapes first if a node
// needs them; the copy declares the shapes of `model`.
Result<onnx::ModelProto> convert_version(const onnx::ModelProto& model, int from, int to,
                                         const FloatsOf& floats_of = {});

// Returns 1 for a name that ONNX does not have.
int oldest_opset(const std::string& op);

// Returns the message of an ONNX exception as one line, without source locations.
std::string onnx_message(const std::exception& error);

}  // namespace ofsdp::importer
