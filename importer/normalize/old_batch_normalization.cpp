#include "importer/normalize/old_batch_normalization.h"

#include <set>
#include <string>

namespace ofsdp::importer {
namespace {

constexpr int kKeptOutputs = 3;  // Y and the next running statistics

std::set<std::string> names_read(const onnx::GraphProto& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.node()) names.insert(node.input().begin(), node.input().end());
  for (const auto& output : graph.output()) names.insert(output.name());
  return names;
}

bool trains(const onnx::NodeProto& node) {
  if (node.op_type() != "BatchNormalization" || !node.domain().empty()) return false;
  for (int i = 1; i < node.output_size(); ++i) {
    if (!node.output(i).empty()) return true;
  }
  return false;
}

void mark(onnx::NodeProto& node, const std::set<std::string>& read) {
  while (node.output_size() > kKeptOutputs && !read.contains(*node.output().rbegin())) {
    node.mutable_output()->RemoveLast();
  }
  auto& attribute = *node.add_attribute();
  attribute.set_name("training_mode");
  attribute.set_type(onnx::AttributeProto::INT);
  attribute.set_i(1);
}

}  // namespace

void mark_training(onnx::GraphProto& graph) {
  const std::set<std::string> read = names_read(graph);
  for (auto& node : *graph.mutable_node()) {
    if (trains(node)) mark(node, read);
  }
}

}  // namespace ofsdp::importer
