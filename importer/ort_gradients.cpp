#include "importer/ort_gradients.h"

#include <algorithm>

namespace ofsdp {
namespace {

using Kind = OrtOperand::Kind;

const OrtGradientRule& rule_of(const Node& node) {
  const auto& rules = ort_gradient_rules();
  return *std::ranges::find(rules, node.op->name, &OrtGradientRule::name);
}

// The forward node as its gradient rule sees it, with the backward nodes going into the graph.
class ForwardView final : public GradBuilder {
 public:
  ForwardView(Graph& graph, const Node& node, const OrtGradientRule& rule)
      : graph_(graph), node_(node), rule_(rule), attributes_(node.attributes) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(assign().with_prefix(graph_.describe(node_)));
    const size_t first = graph_.nodes.size();
    const OpDef& forward = graph_.registry->get(rule_.forward);
    forward.grad(*this);
    OFSDP_RETURN_IF_ERROR(std::move(status_));
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      if (node_.outputs[i] != 0) OFSDP_RETURN_IF_ERROR(give(i, first));
    }
    return ok_status();
  }

  const Attributes& attributes() const override { return attributes_; }
  size_t num_inputs() const override { return inputs_.size(); }
  Ref input(size_t i) const override { return {i < inputs_.size() ? inputs_[i] : 0}; }
  Ref grad_output(size_t i) const override { return {i < grads_.size() ? grads_[i] : 0}; }
  const TensorDesc& desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }

  Ref output(size_t i) override {
    if (i < outputs_.size() && outputs_[i] != 0) return {outputs_[i]};
    if (maker_ < 0 && stand_ins_ == 0)
      return emit(rule_.forward, all_inputs(), attributes_, i + 1)[i];
    if (maker_ < 0) {
      fail(input_error("the gradient of {} needs its output {}, which the node has not",
                       rule_.forward, i));
      return {inputs_.empty() ? 0 : inputs_[0]};
    }
    return {ask_maker(i)};
  }

  bool needs_grad(size_t i) const override {
    for (size_t k = 0; k < rule_.gives.size() && k < node_.outputs.size(); ++k) {
      if (rule_.gives[k] == i && node_.outputs[k] != 0) return true;
    }
    return false;
  }

  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    std::vector<ValueId> ids;
    for (const Ref ref : inputs) ids.push_back(ref.id);
    const std::string name =
        emitted_ == 0 ? node_.name : fmt::format("{}.{}", node_.name, emitted_);
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
  // The operands in their places; places that nothing is known of but that they are there have a
  // stand-in.
  Status assign() {
    if (rule_.of_maker >= 0 || rule_.by_name) OFSDP_RETURN_IF_ERROR(find_maker());
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (i >= rule_.operands.size()) {
        return input_error("expected at most {} inputs, found {}", rule_.operands.size(),
                           node_.inputs.size());
      }
      if (node_.inputs[i] == 0) continue;
      OFSDP_RETURN_IF_ERROR(assign(rule_.operands[i], node_.inputs[i]));
    }
    if (grads_.empty() || grads_[0] == 0) return input_error("has no gradient among its inputs");
    for (const size_t input : rule_.gives) {
      if (input < inputs_.size() && inputs_[input] != 0) continue;
      if (needs_grad(input)) put(inputs_, input, stand_in(input));
    }
    OFSDP_RETURN_IF_ERROR(check_gradient());
    return check_softmax();
  }

  // Of the shape of the output, where that is known: a kernel would read outside of it.
  Status check_gradient() const {
    if (stand_ins_ > 0) return ok_status();
    Node forward{
        &graph_.registry->get(rule_.forward), node_.name, attributes_, inputs_, {1}, false};
    const TensorDesc& found = graph_.value(grads_[0]).desc;
    for (const ValueId id : forward.inputs) {
      if (id == 0) return ok_status();
    }
    if (static_cast<int>(forward.inputs.size()) < forward.op->min_inputs) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph_, forward));
    if (descs[0].shape == found.shape) return ok_status();
    return input_error("expected a gradient of shape {}, found '{}' of shape {}",
                       descs[0].shape.text(), graph_.value(grads_[0]).name, found.shape.text());
  }

  Status assign(const OrtOperand& operand, ValueId id) {
    switch (operand.kind) {
      case Kind::kInput:
        put(inputs_, operand.index, id);
        return ok_status();
      case Kind::kOutput:
        put(outputs_, operand.index, id);
        return ok_status();
      case Kind::kGrad:
        put(grads_, operand.index, id);
        return ok_status();
      case Kind::kShape:
        break;
    }
    const ConstantPtr shape = graph_.value(id).constant;
    if (shape == nullptr || shape->desc.dtype != DType::kInt64) {
      return input_error("'{}' is a shape that is not known while planning", graph_.value(id).name);
    }
    const auto* axes = reinterpret_cast<const int64_t*>(shape->bytes.data());
    put(inputs_, operand.index, of_shape(Shape({axes, axes + shape->desc.numel()})));
    return ok_status();
  }

  static void put(std::vector<ValueId>& list, size_t index, ValueId id) {
    if (list.size() <= index) list.resize(index + 1, 0);
    list[index] = id;
  }

  // A value that no node reads: only its shape is asked for.
  ValueId of_shape(const Shape& shape) {
    const DType dtype = DType::kFloat32;
    return GraphEditor(graph_).add_value(
        {node_.name + ".of", ValueKind::kActivation, {dtype, shape}});
  }

  // An input whose gradient is wanted, and of which the gradient operator knows only the gradient: of
  // the shape of the second operand's first axis (a bias) or of the gradient that arrives.
  ValueId stand_in(size_t input) {
    ++stand_ins_;
    if (input == 0) return of_shape(graph_.value(grads_[0]).desc.shape);
    const Shape& other = graph_.value(inputs_[1]).desc.shape;
    if (rule_.forward == "ConvTranspose") {
      return of_shape(Shape{graph_.value(grads_[0]).desc.shape[1]});
    }
    return rule_.forward == "Conv" ? of_shape(Shape{other[0]}) : of_shape(other);
  }

  std::vector<Ref> all_inputs() const {
    std::vector<Ref> refs;
    for (const ValueId id : inputs_) refs.push_back({id});
    return refs;
  }

  bool is_maker(const Node& forward) const {
    if (rule_.by_name) {
      return forward.op->full_name() == rule_.forward &&
             node_.name.starts_with(forward.name + "_Grad/");
    }
    const auto operand = static_cast<size_t>(rule_.of_maker);
    const ValueId made = operand < node_.inputs.size() ? node_.inputs[operand] : 0;
    return made != 0 && std::ranges::find(forward.outputs, made) != forward.outputs.end();
  }

  Status find_maker() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (is_maker(graph_.nodes[n])) maker_ = static_cast<int>(n);
    }
    if (maker_ >= 0 && graph_.nodes[static_cast<size_t>(maker_)].op->full_name() == rule_.forward) {
      inputs_ = graph_.nodes[static_cast<size_t>(maker_)].inputs;
      attributes_ = graph_.nodes[static_cast<size_t>(maker_)].attributes;
      return ok_status();
    }
    return input_error("expected a node {} that this is the gradient of, found none",
                       rule_.forward);
  }

  // An output that the file does not ask the forward node for.
  ValueId ask_maker(size_t i) {
    Node& node = graph_.nodes[static_cast<size_t>(maker_)];
    if (node.outputs.size() <= i) node.outputs.resize(i + 1, 0);
    if (node.outputs[i] != 0) return node.outputs[i];
    const ValueId id = GraphEditor(graph_).add_value(
        {fmt::format("{}.{}", node.name, i), ValueKind::kActivation, {}});
    node.outputs[i] = id;
    auto descs = infer_outputs(graph_, node);
    if (descs.ok()) {
      graph_.value(id).desc = (*descs)[i];
    } else {
      fail(std::move(descs).status());
    }
    return id;
  }

  // Before opset 13 Softmax took all axes from `axis` on as one, and its gradient kept its name.
  Status check_softmax() {
    const std::string& name = node_.op->name;
    if (name != "SoftmaxGrad" && name != "LogSoftmaxGrad") return ok_status();
    const int rank = graph_.value(grads_[0]).desc.shape.rank();
    const int64_t axis = node_.attributes.i("axis", 1);
    if (axis != -1 && axis != rank - 1) {
      return input_error("axis {} of {}: before opset 13 only the last axis is supported", axis,
                         rank);
    }
    attributes_.set("axis", int64_t{-1});
    return ok_status();
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
  Attributes attributes_;
  std::vector<ValueId> inputs_, outputs_, grads_;
  std::map<size_t, ValueId> gradients_;  // by forward input
  int maker_ = -1;
  int emitted_ = 0;
  int stand_ins_ = 0;
  Status status_;
};

}  // namespace

Status replace_gradient(Graph& graph, const Node& node) {
  return ForwardView(graph, node, rule_of(node)).run();
}

}  // namespace ofsdp
