#include "importer/dialects/onnxruntime/ort_gradients.h"

#include <algorithm>

#include "importer/dialects/onnxruntime/ort_gradient_operands.h"

namespace ofsdp::importer {
namespace {

const OrtGradientRule& rule_of(const Node& node) {
  const auto& rules = ort_gradient_rules();
  return *std::ranges::find(rules, node.op->name, &OrtGradientRule::name);
}

// The forward node as its gradient rule sees it, with the backward nodes going into the graph.
class ForwardView final : public GradBuilder {
 public:
  ForwardView(Graph& graph, const Node& node, const OrtGradientRule& rule)
      : graph_(graph), node_(node), rule_(rule) {}

  Status run() {
    auto placed = place_operands(graph_, node_, rule_);
    if (!placed.ok()) return std::move(placed).status().with_prefix(graph_.describe(node_));
    operands_ = *std::move(placed);
    const size_t first = graph_.nodes.size();
    const OpDef& forward = graph_.registry->get(rule_.forward);
    forward.grad(*this);
    OFSDP_RETURN_IF_ERROR(std::move(status_));
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      if (node_.outputs[i] != 0) OFSDP_RETURN_IF_ERROR(give(i, first));
    }
    return ok_status();
  }

  const Attributes& attributes() const override { return operands_.attributes; }
  size_t num_inputs() const override { return operands_.inputs.size(); }
  Ref input(size_t i) const override {
    return {i < operands_.inputs.size() ? operands_.inputs[i] : 0};
  }
  Ref grad_output(size_t i) const override {
    return {i < operands_.grads.size() ? operands_.grads[i] : 0};
  }
  const TensorDesc& desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }

  Ref output(size_t i) override {
    if (i < operands_.outputs.size() && operands_.outputs[i] != 0) return {operands_.outputs[i]};
    if (operands_.maker < 0 && operands_.stand_ins == 0)
      return emit(rule_.forward, all_inputs(), operands_.attributes, i + 1)[i];
    if (operands_.maker < 0) {
      fail(input_error("the gradient of {} needs its output {}, which the node has not",
                       rule_.forward, i));
      return {operands_.inputs.empty() ? 0 : operands_.inputs[0]};
    }
    return {ask_maker(i)};
  }

  bool needs_grad(size_t i) const override { return gives_gradient(node_, rule_, i); }

  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    std::vector<ValueId> ids;
    for (const Ref ref : inputs) ids.push_back(ref.id);
    const std::string name =
        emitted_ == 0 ? node_.name : format_text("{}.{}", node_.name, emitted_);
    ++emitted_;
    auto made = GraphEditor(graph_).add(op, name, ids, attributes, num_outputs, true);
    if (!made.ok()) {
      fail(std::move(made).status());
      return std::vector<Ref>(num_outputs, Ref{1});
    }
    std::vector<Ref> refs;
    for (const ValueId id : *made) refs.push_back({id});
    return refs;
  }

  Ref constant(ConstantPtr value) override {
    return {GraphEditor(graph_).add_constant(node_.name + ".constant", std::move(value))};
  }
  void set_grad(size_t input, Ref grad) override { gradients_[input] = grad.id; }
  void fail(Status status) override {
    if (status_.ok()) status_ = std::move(status).with_prefix(graph_.describe(node_));
  }

 private:
  std::vector<Ref> all_inputs() const {
    std::vector<Ref> refs;
    for (const ValueId id : operands_.inputs) refs.push_back({id});
    return refs;
  }

  // An output that the file does not ask the forward node for.
  ValueId ask_maker(size_t i) {
    Node& node = graph_.nodes[static_cast<size_t>(operands_.maker)];
    if (node.outputs.size() <= i) node.outputs.resize(i + 1, 0);
    if (node.outputs[i] != 0) return node.outputs[i];
    const ValueId id = GraphEditor(graph_).add_value(
        {format_text("{}.{}", node.name, i), ValueKind::kActivation, {}});
    node.outputs[i] = id;
    auto descs = infer_outputs(graph_, node);
    if (descs.ok()) {
      graph_.value(id).desc = (*descs)[i];
    } else {
      fail(std::move(descs).status());
    }
    return id;
  }

  // The gradient under the name of the node's output: its maker writes there.
  Status give(size_t output, size_t first) {
    const ValueId to = node_.outputs[output];
    const auto found = gradients_.find(rule_.gives[output]);
    if (found == gradients_.end()) {
      return input_error("{}: output {} is no gradient of {}", graph_.describe(node_), output,
                         rule_.forward);
    }
    const ValueId from = found->second;
    graph_.value(to).desc = graph_.value(from).desc;
    bool made = false;
    for (size_t n = first; n < graph_.nodes.size(); ++n) {
      for (ValueId& id : graph_.nodes[n].outputs) made |= id == from;
    }
    if (!made) {
      graph_.nodes.push_back(
          {&graph_.registry->get("Identity"), node_.name, {}, {from}, {to}, true});
      return ok_status();
    }
    for (size_t n = first; n < graph_.nodes.size(); ++n) {
      std::ranges::replace(graph_.nodes[n].outputs, from, to);
      std::ranges::replace(graph_.nodes[n].inputs, from, to);
    }
    for (auto& [input, id] : gradients_) {
      if (id == from) id = to;
    }
    return ok_status();
  }

  Graph& graph_;
  const Node& node_;
  const OrtGradientRule& rule_;
  OrtGradientOperands operands_;
  std::map<size_t, ValueId> gradients_;  // by forward input
  int emitted_ = 0;
  Status status_;
};

}  // namespace

Status replace_gradient(Graph& graph, const Node& node) {
  return ForwardView(graph, node, rule_of(node)).run();
}

}  // namespace ofsdp::importer
