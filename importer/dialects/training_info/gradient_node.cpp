#include "importer/dialects/training_info/gradient_node.h"

#include <algorithm>

#include "importer/dialects/training_info/training_info.h"

namespace ofsdp::importer {

namespace {

// Empty where the node has none of that name.
const onnx::AttributeProto& attribute_of(const onnx::NodeProto& node, const char* name) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == name) return attribute;
  }
  return onnx::AttributeProto::default_instance();
}

std::vector<std::string> strings_of(const onnx::NodeProto& node, const char* name) {
  const auto& list = attribute_of(node, name).strings();
  return {list.begin(), list.end()};
}

}  // namespace

GradientNode::GradientNode(const onnx::NodeProto& node)
    : y(attribute_of(node, "y").s()), xs(strings_of(node, "xs")), zs(strings_of(node, "zs")) {}

bool is_gradient(const onnx::NodeProto& node) {
  return node.domain() == kTrainingDomain && node.op_type() == "Gradient";
}

Status check_operands(const onnx::NodeProto& node, const GradientNode& gradient) {
  std::vector<std::string> all = gradient.xs;
  all.insert(all.end(), gradient.zs.begin(), gradient.zs.end());
  if (!std::ranges::equal(all, node.input())) {
    return input_error(
        "{}: expected the tensors of xs and zs ({}) as inputs, found ({}): a "
        "gradient at other values is not computed",
        label(node), joined(all, ", "), joined(node.input(), ", "));
  }
  if (static_cast<size_t>(node.output_size()) <= gradient.xs.size()) return {};
  return input_error("{}: expected at most {} outputs, as xs has, found {}", label(node),
                     gradient.xs.size(), node.output_size());
}

std::string label(const onnx::NodeProto& node) {
  const bool named = !node.name().empty() || node.output().empty();
  return format_text("node '{}' ({})", named ? node.name() : node.output(0), node.op_type());
}

}  // namespace ofsdp::importer
