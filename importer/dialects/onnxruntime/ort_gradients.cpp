#include <algorithm>
#include <map>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/graph/graph.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// The meaning of a gradient operator's input.
struct OrtOperand {
  enum class Kind {
    kInput,   // the forward operator's
    kOutput,  // the forward operator's
    kGrad,    // the gradient for a forward output
    kShape    // an input's shape, as a constant
  };
  Kind kind = Kind::kInput;
  size_t index = 0;
};

struct OrtGradientRule {
  std::string name;     // "ReluGrad"
  std::string forward;  // "Relu", or "com.microsoft.BiasGelu"
  std::vector<OrtOperand> operands;
  std::vector<size_t> gives;  // per output: index of the forward input with this gradient
  int of_maker = -1;          // operand that the forward node makes, which leads to that node
  bool by_name = false;  // the gradient node's name contains the forward node's: "pool1_Grad/..."
};

using Kind = OrtOperand::Kind;

constexpr OrtOperand kDy{Kind::kGrad, 0};
constexpr OrtOperand in(size_t index) { return {Kind::kInput, index}; }
constexpr OrtOperand out(size_t index) { return {Kind::kOutput, index}; }
constexpr OrtOperand shape_of(size_t index) { return {Kind::kShape, index}; }

const std::vector<OrtGradientRule>& rules() {
  static const std::vector<OrtGradientRule> table{
      {"ReluGrad", "Relu", {kDy, out(0)}, {0}},
      {"SigmoidGrad", "Sigmoid", {kDy, out(0)}, {0}},
      {"TanhGrad", "Tanh", {kDy, out(0)}, {0}},
      {"SinGrad", "Sin", {kDy, in(0)}, {0}},
      {"GeluGrad", "com.microsoft.Gelu", {kDy, in(0)}, {0}},
      {"FastGeluGrad", "com.microsoft.FastGelu", {kDy, in(0)}, {0}},
      {"QuickGeluGrad", "com.microsoft.QuickGelu", {kDy, in(0)}, {0}},
      {"BiasGeluGrad_dX", "com.microsoft.BiasGelu", {kDy, in(0), in(1)}, {0}},
      {"BiasFastGeluGrad_dX", "com.microsoft.FastGelu", {kDy, in(0), in(1)}, {0}},
      {"LeakyReluGrad",
       "LeakyRelu",
       {kDy, in(0)},
       {0}},  // it receives Y; Y's sign gives the same slope
      {"SoftmaxGrad", "Softmax", {kDy, out(0)}, {0}},
      {"SoftmaxGrad_13", "Softmax", {kDy, out(0)}, {0}},
      {"LogSoftmaxGrad", "LogSoftmax", {kDy, out(0)}, {0}},
      {"LogSoftmaxGrad_13", "LogSoftmax", {kDy, out(0)}, {0}},
      {"DivGrad", "Div", {kDy, in(0), in(1)}, {0, 1}},
      {"ConvGrad", "Conv", {kDy, in(0), in(1)}, {0, 1, 2}},
      {"ConvTransposeGrad", "ConvTranspose", {kDy, in(0), in(1)}, {0, 1, 2}},
      {"MaxPoolGrad", "MaxPool", {kDy, out(1)}, {0}, 1},
      {"AveragePoolGrad", "AveragePool", {kDy}, {0}, -1, true},
      {"DropoutGrad", "Dropout", {kDy, out(1), in(1), in(2)}, {0}},
      {"GatherGrad", "Gather", {shape_of(0), in(1), kDy}, {0}},
      {"GatherElementsGrad", "GatherElements", {kDy, shape_of(0), in(1)}, {0}},
      {"GatherNDGrad", "GatherND", {shape_of(0), in(1), kDy}, {0}},
      {"SliceGrad", "Slice", {kDy, shape_of(0), in(1), in(2), in(3), in(4)}, {0}},
      {"LayerNormalizationGrad",
       "LayerNormalization",
       {kDy, in(0), in(1), out(1), out(2)},
       {0, 1, 2}},
      {"SimplifiedLayerNormalizationGrad",
       "SimplifiedLayerNormalization",
       {kDy, in(0), in(1), out(1)},
       {0, 1}},
      {"BatchNormalizationGrad",
       "BatchNormalization",
       {kDy, in(0), in(1), out(3), out(4)},
       {0, 1, 2},
       3},
      {"SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLoss", {kDy, out(1), in(1), in(2)}, {0}}};
  return table;
}

// Operands at the places where the forward operator's gradient rule expects them. If only an
// input's shape is known, it has a stand-in: a value that no node makes or reads.
struct OrtGradientOperands {
  Attributes attributes;                        // the forward operator's
  std::vector<ValueId> inputs, outputs, grads;  // the forward operator's; 0: absent
  int maker = -1;                               // forward node, if the rule needs it
  int stand_ins = 0;                            // inputs without value and with a wanted gradient
};

// Returns whether `node` makes that forward input's gradient.
bool gives_gradient(const Node& node, const OrtGradientRule& rule, size_t input) {
  for (size_t k = 0; k < rule.gives.size() && k < node.outputs.size(); ++k) {
    if (rule.gives[k] == input && node.outputs[k] != 0) return true;
  }
  return false;
}

class OperandPlacer {
 public:
  OperandPlacer(Graph& graph, const Node& node, const OrtGradientRule& rule)
      : graph_(graph), node_(node), rule_(rule) {
    made_.attributes = node.attributes;
  }

  Result<OrtGradientOperands> run() {
    if (rule_.of_maker >= 0 || rule_.by_name) OFSDP_RETURN_IF_ERROR(find_maker());
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      OFSDP_REJECT_IF(i >= rule_.operands.size(), "expected at most {} inputs, found {}",
                      rule_.operands.size(), node_.inputs.size());
      if (node_.inputs[i] == 0) continue;
      OFSDP_RETURN_IF_ERROR(assign(rule_.operands[i], node_.inputs[i]));
    }
    OFSDP_REJECT_IF(made_.grads.empty() || made_.grads[0] == 0, "has no gradient among its inputs");
    for (const size_t input : rule_.gives) {
      if (input < made_.inputs.size() && made_.inputs[input] != 0) continue;
      if (!gives_gradient(node_, rule_, input)) continue;
      OFSDP_ASSIGN_OR_RETURN(const ValueId made, stand_in(input));
      put(made_.inputs, input, made);
    }
    OFSDP_RETURN_IF_ERROR(check_outputs());
    OFSDP_RETURN_IF_ERROR(check_softmax());
    return std::move(made_);
  }

 private:
  // Checks that the forward operator's outputs, and the gradient, have the inferred shapes;
  // otherwise a kernel would read outside. Inference also checks the attributes.
  Status check_outputs() const {
    const OpDef& op = graph_.registry->get(rule_.forward);
    Node forward{&op, node_.name, made_.attributes, made_.inputs, made_.outputs, false};
    if (forward.outputs.empty()) forward.outputs = {1};
    if (static_cast<int>(forward.inputs.size()) < op.min_inputs) return ok_status();
    if (std::ranges::count(forward.inputs.begin(), forward.inputs.begin() + op.min_inputs, 0) > 0) {
      return ok_status();
    }
    auto descs = infer_outputs(graph_, forward);
    const bool of_scores = op.name == "SoftmaxCrossEntropyLoss";  // the gradient is a scalar
    if (!descs.ok() && first_stands_in_ && of_scores) return ok_status();
    OFSDP_RETURN_IF_ERROR(std::move(descs).status());
    OFSDP_RETURN_IF_ERROR(check_shape("a gradient", (*descs)[0], made_.grads[0]));
    for (size_t i = 0; i < made_.outputs.size(); ++i) {
      if (made_.outputs[i] == 0) continue;
      OFSDP_RETURN_IF_ERROR(check_shape("an output", (*descs)[i], made_.outputs[i]));
    }
    return ok_status();
  }

  Status check_shape(const char* what, const TensorDesc& expected, ValueId id) const {
    const TensorDesc& found = graph_.value(id).desc;
    if (expected.shape == found.shape) return ok_status();
    return input_error("expected {} of shape {}, found '{}' of shape {}", what,
                       expected.shape.text(), graph_.value(id).name, found.shape.text());
  }

  Status assign(const OrtOperand& operand, ValueId id) {
    if (operand.kind == Kind::kOutput) put(made_.outputs, operand.index, id);
    if (operand.kind == Kind::kGrad) put(made_.grads, operand.index, id);
    if (operand.kind == Kind::kInput) put(made_.inputs, operand.index, id);
    if (operand.kind != Kind::kShape) return ok_status();
    const ConstantPtr shape = graph_.value(id).constant;
    OFSDP_REJECT_IF(shape == nullptr || shape->desc.dtype != DType::kInt64,
                    "'{}' is a shape that is not known while planning", graph_.value(id).name);
    const Shape known(*int_values(*shape));
    OFSDP_RETURN_IF_ERROR(check_size({DType::kFloat32, known}));
    put(made_.inputs, operand.index, of_shape(known));
    return ok_status();
  }

  static void put(std::vector<ValueId>& list, size_t index, ValueId id) {
    if (list.size() <= index) list.resize(index + 1, 0);
    list[index] = id;
  }

  // Returns a value that no node reads: only the shape is used.
  ValueId of_shape(const Shape& shape) {
    const DType dtype = DType::kFloat32;
    return GraphEditor(graph_).add_value(
        {node_.name + ".of", ValueKind::kActivation, {dtype, shape}});
  }

  // Returns a value for an input if the gradient operator knows only the gradient. It has the
  // second operand's first axis as shape (a bias), or the incoming gradient's shape.
  Result<ValueId> stand_in(size_t input) {
    ++made_.stand_ins;
    const Shape& gradient = graph_.value(made_.grads[0]).desc.shape;
    if (input == 0) {
      first_stands_in_ = true;
      return of_shape(gradient);
    }
    OFSDP_REJECT_IF(made_.inputs.size() < 2 || made_.inputs[1] == 0,
                    "expected input 1 of {} among its inputs", rule_.forward);
    const Shape other = graph_.value(made_.inputs[1]).desc.shape;
    const bool transposed = rule_.forward == "ConvTranspose";
    if (!transposed && rule_.forward != "Conv") return of_shape(other);
    OFSDP_REJECT_IF(gradient.rank() < 2 || other.rank() < 1,
                    "expected a gradient and weights of 3 axes or more, found {} and {}",
                    gradient.text(), other.text());
    return of_shape(Shape{transposed ? gradient[1] : other[0]});
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
    const Node* maker = made_.maker < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(made_.maker)];
    OFSDP_REJECT_IF(maker == nullptr || maker->op->full_name() != rule_.forward,
                    "expected a node {} that this is the gradient of, found none", rule_.forward);
    made_.inputs = maker->inputs;
    made_.attributes = maker->attributes;
    return ok_status();
  }

  // Before opset 13 Softmax took all axes from `axis` on as one, and the gradient kept its name.
  Status check_softmax() {
    const std::string& name = node_.op->name;
    if (name != "SoftmaxGrad" && name != "LogSoftmaxGrad") return ok_status();
    const int rank = graph_.value(made_.grads[0]).desc.shape.rank();
    const int64_t axis = node_.attributes.i("axis", 1);
    OFSDP_REJECT_IF(axis != -1 && axis != rank - 1,
                    "axis {} of {}: before opset 13 only the last axis is supported", axis, rank);
    made_.attributes.set("axis", int64_t{-1});
    return ok_status();
  }

  Graph& graph_;
  const Node& node_;
  const OrtGradientRule& rule_;
  OrtGradientOperands made_;
  bool first_stands_in_ = false;
};

// The forward node, as the gradient rule sees it. Backward nodes go into the graph in file order;
// order_backward marks and moves them.
class ForwardView final : public GradBuilder {
 public:
  ForwardView(Graph& graph, const Node& node, const OrtGradientRule& rule)
      : graph_(graph), node_(node), rule_(rule) {}

  Status run() {
    OFSDP_ASSIGN_OR_RETURN(
        operands_, prefixed(graph_.describe(node_), OperandPlacer(graph_, node_, rule_).run()));
    const size_t first = graph_.nodes.size();
    const OpDef& forward = graph_.registry->get(rule_.forward);
    forward.grad(*this);
    OFSDP_RETURN_IF_ERROR(std::move(status_));
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      if (node_.outputs[i] != 0) OFSDP_RETURN_IF_ERROR(give(i, first));
    }
    return ok_status();
  }

  Attributes attributes() const override { return operands_.attributes; }
  size_t num_inputs() const override { return operands_.inputs.size(); }
  Ref input(size_t i) const override {
    return {i < operands_.inputs.size() ? operands_.inputs[i] : 0};
  }
  Ref grad_output(size_t i) const override {
    return {i < operands_.grads.size() ? operands_.grads[i] : 0};
  }
  TensorDesc desc(Ref ref) const override { return graph_.value(ref.id).desc; }
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
    auto made = GraphEditor(graph_).add(op, name, ids, attributes, num_outputs);
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

  // Returns an output that the file does not request from the forward node.
  ValueId ask_maker(size_t i) {
    Node& node = graph_.nodes[static_cast<size_t>(operands_.maker)];
    Node made = node;
    if (made.outputs.size() <= i) made.outputs.resize(i + 1, 0);
    if (made.outputs[i] != 0) return made.outputs[i];
    GraphEditor editor(graph_);
    const ValueId id =
        editor.add_value({format_text("{}.{}", node.name, i), ValueKind::kActivation, {}});
    made.outputs[i] = id;
    if (Status asked = editor.change_descs(node, std::move(made)); !asked.ok()) {
      fail(std::move(asked));
    }
    return id;
  }

  // Gives the gradient the output's name: the maker writes there.
  Status give(size_t output, size_t first) {
    const ValueId to = node_.outputs[output];
    const auto found =
        output < rule_.gives.size() ? gradients_.find(rule_.gives[output]) : gradients_.end();
    OFSDP_REJECT_IF(found == gradients_.end(), "{}: output {} is no gradient of {}",
                    graph_.describe(node_), output, rule_.forward);
    const ValueId from = found->second;
    graph_.value(to).desc = graph_.value(from).desc;
    bool made = false;
    for (size_t n = first; n < graph_.nodes.size(); ++n) {
      for (ValueId& id : graph_.nodes[n].outputs) made |= id == from;
    }
    GraphEditor editor(graph_);
    if (!made) {
      return editor.place({&graph_.registry->get("Identity"), node_.name, {}, {from}, {to}});
    }
    for (size_t n = first; n < graph_.nodes.size(); ++n) {
      Node renamed = graph_.nodes[n];
      std::ranges::replace(renamed.outputs, from, to);
      std::ranges::replace(renamed.inputs, from, to);
      OFSDP_RETURN_IF_ERROR(editor.change(graph_.nodes[n], std::move(renamed)));
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

std::vector<std::string> ort_gradient_names() {
  std::vector<std::string> names;
  for (const OrtGradientRule& rule : rules()) names.push_back(rule.name);
  return names;
}

Status replace_gradient(Graph& graph, const Node& node) {
  const auto rule = std::ranges::find(rules(), node.op->name, &OrtGradientRule::name);
  return ForwardView(graph, node, *rule).run();
}

}  // namespace ofsdp::importer
