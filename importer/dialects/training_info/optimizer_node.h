// Nodes of the standard's optimizers (Adagrad, Adam, Momentum of ai.onnx.preview.training), which
// update any number of tensors at once.
//
// Ownership: values. Threads: any. Errors: kInput naming the node.
#pragma once

#include <string>

#include "importer/dialects/training_info/training_info.h"

namespace ofsdp::importer {

bool is_optimizer(const onnx::NodeProto& node);

// Of Adam(R, T, X1, X2, G1, G2, ...) what concerns the tensor of the output `wanted`.
Status keep_one_tensor(onnx::NodeProto& node, const std::string& wanted);

}  // namespace ofsdp::importer
