#include "importer/dialects/training_info/optimizer_node.h"

#include <algorithm>

namespace ofsdp::importer {
namespace {

// Kinds of state of an optimizer of the standard; -1: it is none.
int states_of(const onnx::NodeProto& node) {
  if (node.domain() != kTrainingDomain) return -1;
  if (node.op_type() == "Adam") return 2;
  return node.op_type() == "Adagrad" || node.op_type() == "Momentum" ? 1 : -1;
}

}  // namespace

bool is_optimizer(const onnx::NodeProto& node) { return states_of(node) >= 0; }

Status keep_one_tensor(onnx::NodeProto& node, const std::string& wanted) {
  const int kinds = states_of(node) + 2, all = node.input_size() - 2;
  const int tensors = all / kinds;
  if (tensors < 1 || all % kinds != 0 || node.output_size() > tensors * (kinds - 1)) {
    return input_error("node '{}' ({}): expected R, T and {} inputs a tensor, found {}",
                       node.name(), node.op_type(), kinds, node.input_size());
  }
  const auto at = std::ranges::find(node.output(), wanted) - node.output().begin();
  const int tensor = static_cast<int>(at) % tensors;
  onnx::NodeProto one = node;
  one.clear_input();
  one.clear_output();
  one.add_input(node.input(0));
  one.add_input(node.input(1));
  for (int i = 0; i < kinds; ++i) one.add_input(node.input(2 + i * tensors + tensor));
  for (int i = 0; i + 1 < kinds; ++i) {
    const int from = i * tensors + tensor;
    one.add_output(from < node.output_size() ? node.output(from) : "");
  }
  node = std::move(one);
  return {};
}

}  // namespace ofsdp::importer
