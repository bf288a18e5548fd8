// Gradient of ai.onnx.preview.training: the gradients of `y` with respect to each of `xs`, at the
// values of the tensors xs and zs, which are the node's inputs.
//
// Ownership: values. Threads: any. Errors: kInput naming the node.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::importer {

struct GradientNode {
  explicit GradientNode(const onnx::NodeProto& node);

  std::string y;
  std::vector<std::string> xs, zs;
};

bool is_gradient(const onnx::NodeProto& node);

// That its inputs and outputs are those of `gradient`.
Status check_operands(const onnx::NodeProto& node, const GradientNode& gradient);

// "node 'grads' (Gradient)", of any node of an algorithm.
std::string label(const onnx::NodeProto& node);

}  // namespace ofsdp::importer
