#include "importer/dialects/onnxruntime/ort_gradient_operands.h"

#include <algorithm>

namespace ofsdp::importer {
namespace {

using Kind = OrtOperand::Kind;

class OperandPlacer {
 public:
  OperandPlacer(Graph& graph, const Node& node, const OrtGradientRule& rule)
      : graph_(graph), node_(node), rule_(rule) {
    made_.attributes = node.attributes;
  }

  Result<OrtGradientOperands> run() {
    OFSDP_RETURN_IF_ERROR(assign_all());
    return std::move(made_);
  }

 private:
  Status assign_all() {
    if (rule_.of_maker >= 0 || rule_.by_name) OFSDP_RETURN_IF_ERROR(find_maker());
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (i >= rule_.operands.size()) {
        return input_error("expected at most {} inputs, found {}", rule_.operands.size(),
                           node_.inputs.size());
      }
      if (node_.inputs[i] == 0) continue;
      OFSDP_RETURN_IF_ERROR(assign(rule_.operands[i], node_.inputs[i]));
    }
    if (made_.grads.empty() || made_.grads[0] == 0)
      return input_error("has no gradient among its inputs");
    for (const size_t input : rule_.gives) {
      if (input < made_.inputs.size() && made_.inputs[input] != 0) continue;
      if (gives_gradient(node_, rule_, input)) put(made_.inputs, input, stand_in(input));
    }
    OFSDP_RETURN_IF_ERROR(check_gradient());
    return check_softmax();
  }

  // Of the shape of the output, where that is known: a kernel would read outside of it.
  Status check_gradient() const {
    if (made_.stand_ins > 0) return ok_status();
    Node forward{&graph_.registry->get(rule_.forward),
                 node_.name,
                 made_.attributes,
                 made_.inputs,
                 {1},
                 false};
    const TensorDesc& found = graph_.value(made_.grads[0]).desc;
    for (const ValueId id : forward.inputs) {
      if (id == 0) return ok_status();
    }
    if (static_cast<int>(forward.inputs.size()) < forward.op->min_inputs) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph_, forward));
    if (descs[0].shape == found.shape) return ok_status();
    return input_error("expected a gradient of shape {}, found '{}' of shape {}",
                       descs[0].shape.text(), graph_.value(made_.grads[0]).name,
                       found.shape.text());
  }

  Status assign(const OrtOperand& operand, ValueId id) {
    switch (operand.kind) {
      case Kind::kInput:
        put(made_.inputs, operand.index, id);
        return ok_status();
      case Kind::kOutput:
        put(made_.outputs, operand.index, id);
        return ok_status();
      case Kind::kGrad:
        put(made_.grads, operand.index, id);
        return ok_status();
      case Kind::kShape:
        break;
    }
    const ConstantPtr shape = graph_.value(id).constant;
    if (shape == nullptr || shape->desc.dtype != DType::kInt64) {
      return input_error("'{}' is a shape that is not known while planning", graph_.value(id).name);
    }
    const auto* axes = reinterpret_cast<const int64_t*>(shape->bytes.data());
    put(made_.inputs, operand.index, of_shape(Shape({axes, axes + shape->desc.numel()})));
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
    ++made_.stand_ins;
    if (input == 0) return of_shape(graph_.value(made_.grads[0]).desc.shape);
    const Shape& other = graph_.value(made_.inputs[1]).desc.shape;
    if (rule_.forward == "ConvTranspose") {
      return of_shape(Shape{graph_.value(made_.grads[0]).desc.shape[1]});
    }
    return rule_.forward == "Conv" ? of_shape(Shape{other[0]}) : of_shape(other);
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
      if (is_maker(graph_.nodes[n])) made_.maker = static_cast<int>(n);
    }
    if (made_.maker >= 0 &&
        graph_.nodes[static_cast<size_t>(made_.maker)].op->full_name() == rule_.forward) {
      made_.inputs = graph_.nodes[static_cast<size_t>(made_.maker)].inputs;
      made_.attributes = graph_.nodes[static_cast<size_t>(made_.maker)].attributes;
      return ok_status();
    }
    return input_error("expected a node {} that this is the gradient of, found none",
                       rule_.forward);
  }

  // Before opset 13 Softmax took all axes from `axis` on as one, and its gradient kept its name.
  Status check_softmax() {
    const std::string& name = node_.op->name;
    if (name != "SoftmaxGrad" && name != "LogSoftmaxGrad") return ok_status();
    const int rank = graph_.value(made_.grads[0]).desc.shape.rank();
    const int64_t axis = node_.attributes.i("axis", 1);
    if (axis != -1 && axis != rank - 1) {
      return input_error("axis {} of {}: before opset 13 only the last axis is supported", axis,
                         rank);
    }
    made_.attributes.set("axis", int64_t{-1});
    return ok_status();
  }

  Graph& graph_;
  const Node& node_;
  const OrtGradientRule& rule_;
  OrtGradientOperands made_;
};

}  // namespace

Result<OrtGradientOperands> place_operands(Graph& graph, const Node& node,
                                           const OrtGradientRule& rule) {
  return OperandPlacer(graph, node, rule).run();
}

bool gives_gradient(const Node& node, const OrtGradientRule& rule, size_t input) {
  for (size_t k = 0; k < rule.gives.size() && k < node.outputs.size(); ++k) {
    if (rule.gives[k] == input && node.outputs[k] != 0) return true;
  }
  return false;
}

}  // namespace ofsdp::importer
