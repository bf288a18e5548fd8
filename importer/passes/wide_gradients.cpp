#include <algorithm>

#include "importer/graph/graph.h"
#include "importer/passes/joined_nodes.h"
#include "kernels/core/planned_operands.h"

namespace ofsdp::importer {
namespace {

class GradientWidener {
 public:
  GradientWidener(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source), after_(source.nodes.size()) {}

  Result<Graph> run() {
    for (const Parameter& p : graph_.parameters) {
      if (p.gradient == 0 || !is_16_bit_float(graph_.value(p.gradient).desc.dtype)) continue;
      if (widen_maker(p.gradient)) continue;
      OFSDP_RETURN_IF_ERROR(widen_result(p.gradient));
    }
    std::vector<Node> nodes;
    for (size_t i = 0; i < after_.size(); ++i) {
      nodes.push_back(std::move(graph_.nodes[i]));
      std::ranges::move(after_[i], std::back_inserter(nodes));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  static bool is_16_bit_float(DType dtype) {
    return dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  }

  // Returns the attribute that lets the node write `gradient` in float32; null if it has none.
  static const char* wide_attribute(const Node& node, ValueId gradient) {
    using linear_loss::kDW;
    if (is_operator(node, "ofsdp.LinearCrossEntropy")) {
      return kDW < node.outputs.size() && node.outputs[kDW] == gradient ? "wide_weights" : nullptr;
    }
    const bool adds = node.inputs.size() > 2 && node.inputs[2] != 0;
    const bool product =
        is_operator(node, "Gemm") && !adds && !node.attributes.has("ofsdp_activation");
    return product ? kWideResult : nullptr;
  }

  // Lets the node that makes the gradient write float32; returns false if it cannot.
  bool widen_maker(ValueId gradient) {
    Node& maker = graph_.nodes[static_cast<size_t>(uses_.maker(gradient))];
    const char* const attribute = wide_attribute(maker, gradient);
    if (attribute == nullptr || !uses_.readers(gradient).empty()) return false;
    Node made = maker;
    made.attributes.set(attribute, int64_t{1});
    TensorDesc& desc = graph_.value(gradient).desc;
    const TensorDesc narrow = desc;
    desc.dtype = DType::kFloat32;
    if (takes_(graph_, made) && GraphEditor(graph_).change_descs(maker, std::move(made)).ok()) {
      ++graph_.fused["wide_gradient"];
      return true;
    }
    graph_.value(gradient).desc = narrow;
    return false;
  }

  // The node and other readers take a value in 16 bits, which a Cast widens.
  Status widen_result(ValueId gradient) {
    const auto n = static_cast<size_t>(uses_.maker(gradient));
    Value value = graph_.value(gradient);
    value.name += ".narrow";
    const ValueId narrow = GraphEditor(graph_).add_value(std::move(value));
    const auto replace = [&](size_t i) {
      Node made = graph_.nodes[i];
      std::ranges::replace(made.inputs, gradient, narrow);
      std::ranges::replace(made.outputs, gradient, narrow);
      return GraphEditor(graph_).change(graph_.nodes[i], std::move(made));
    };
    OFSDP_RETURN_IF_ERROR(replace(n));
    for (const size_t reader : uses_.readers(gradient)) OFSDP_RETURN_IF_ERROR(replace(reader));
    Node cast;
    cast.op = &graph_.registry->get("Cast");
    cast.name = graph_.nodes[n].name + ".wide";
    cast.attributes = {{"to", onnx_number(DType::kFloat32)}};
    cast.inputs = {narrow};
    cast.outputs = {gradient};
    cast.backward = graph_.nodes[n].backward;
    OFSDP_RETURN_IF_ERROR(GraphEditor(graph_).place_inferred(std::move(cast)));
    after_[n].push_back(std::move(graph_.nodes.back()));
    graph_.nodes.pop_back();
    return {};
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::vector<std::vector<Node>> after_;  // per node
};

}  // namespace

Result<Graph> widen_gradients(const Graph& graph, const TakesNode& takes) {
  return GradientWidener(graph, takes).run();
}

}  // namespace ofsdp::importer
