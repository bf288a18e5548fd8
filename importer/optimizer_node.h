// Nodes of the standard's optimizers (Adagrad, Adam, Momentum of ai.onnx.preview.training), which
// update any number of tensors at once.
//
// Ownership: values. Threads: any. Errors: kInput naming the node.
#pragma once

#include <string>

#include "importer/training_info.h"

namespace ofsdp {

bool is_optimizer(const onnx::NodeProto& node);

// Of Adam(R, T, X1, X2, G1, G2, ...) what concerns the tensor of the output `wanted`.
Status keep_one_tensor(onnx::NodeProto& node, const std::string& wanted);

}  // namespace ofsdp
