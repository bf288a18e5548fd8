// A model in a newer opset, and the opset from which on an operator of ai.onnx is taken there: the
// table of operators promises it. Each step goes by our own rules (opset_rules.h), else by the
// adapters of ONNX's version converter. The converter's header defines every adapter, so one source
// includes it.
//
// Threads: any. Errors: kInput naming the node and its opset.
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

// Returns the elements of a small floating-point initializer, which a skeleton lacks; none when
// there is no such initializer.
using FloatsOf = std::function<std::optional<std::vector<float>>(const std::string& name)>;

// A copy of `model`, which is in opset `from` of ai.onnx. Shapes are inferred first where a node
// needs them; the copy declares those of `model`.
Result<onnx::ModelProto> convert_version(const onnx::ModelProto& model, int from, int to,
                                         const FloatsOf& floats_of = {});

// 1 for a name that ONNX does not have.
int oldest_opset(const std::string& op);

// The message of an ONNX exception as one line, without places in sources.
std::string onnx_message(const std::exception& error);

}  // namespace ofsdp::importer
