#include <algorithm>
#include <map>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/file/onnx_file.h"
#include "importer/passes/passes.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kOf = "of";  // attribute of gradient_sum: the value with this gradient

// ONNX operators under another name.
const std::map<std::string, std::string>& renamed() {
  static const std::map<std::string, std::string> names{{"ReduceSumTraining", "ReduceSum"},
                                                        {"SplitTraining", "Split"},
                                                        {"ConcatTraining", "Concat"},
                                                        {"PassThrough", "Identity"}};
  return names;
}

constexpr const char* kComputed[] = {"Scale", "BroadcastGradientArgs"};

std::map<std::string, OpDef> make_operators() {
  std::map<std::string, OpDef> made;
  const auto add = [&](const std::string& name) {
    made[name] = {.domain = kMicrosoft, .name = name, .min_inputs = 1};
  };
  for (const auto& [name, op] : renamed()) add(name);
  for (const char* name : kComputed) add(name);
  for (const std::string& name : ort_gradient_names()) add(name);
  return made;
}

const std::map<std::string, OpDef>& operators() {
  static const std::map<std::string, OpDef> made = make_operators();
  return made;
}

// The operator for an Identity that may have to sum the input; see [Note: sums left out].
const OpDef& gradient_sum() {
  static const OpDef op{.domain = kMicrosoft, .name = "Identity", .min_inputs = 1};
  return op;
}

// Replaces one such node.
class Replacement {
 public:
  Replacement(Graph& graph, Node& node) : graph_(graph), node_(node) {}

  // Returns whether other nodes replaced it.
  Result<bool> run() {
    OFSDP_REJECT_IF(node_.inputs.empty(), "{}: expected at least 1 input, found 0",
                    graph_.describe(node_));
    const std::string& name = node_.op->name;
    const auto other = renamed().find(name);
    if (node_.op == &gradient_sum()) {
      sum_gradient();
    } else if (other != renamed().end()) {
      OFSDP_RETURN_IF_ERROR(rename(other->second).with_prefix(graph_.describe(node_)));
    } else if (name == "Scale") {
      OFSDP_RETURN_IF_ERROR(scale().with_prefix(graph_.describe(node_)));
    } else {
      OFSDP_RETURN_IF_ERROR(name == "BroadcastGradientArgs"
                                ? broadcast_axes().with_prefix(graph_.describe(node_))
                                : replace_gradient(graph_, node_));
      return true;
    }
    return false;
  }

 private:
  void set_constant(size_t output, ConstantPtr constant) {
    if (output >= node_.outputs.size() || node_.outputs[output] == 0) return;
    Value& value = graph_.value(node_.outputs[output]);
    value.kind = ValueKind::kConstant;
    value.desc = constant->desc;
    value.constant = std::move(constant);
  }

  // Specialization asks the operator.
  void become(const std::string& op, std::vector<ValueId> inputs, Attributes attributes) {
    GraphEditor::change_symbolic(
        node_, {&graph_.registry->get(op), node_.name, std::move(attributes), std::move(inputs),
                node_.outputs, node_.backward});
  }

  Status rename(const std::string& op) {
    become(op, node_.inputs, node_.attributes);
    return op == "Concat" ? set_lengths() : ok_status();
  }

  // ConcatTraining's second output holds the input lengths.
  Status set_lengths() {
    if (node_.outputs.size() < 2) return ok_status();
    std::vector<int64_t> lengths;
    for (const ValueId id : node_.inputs) {
      const Shape& shape = graph_.value(id).desc.shape;
      OFSDP_ASSIGN_OR_RETURN(const int axis,
                             normalize_axis(node_.attributes.i("axis", 0), shape.rank()));
      lengths.push_back(shape[axis]);
    }
    const auto count = static_cast<int64_t>(lengths.size());
    set_constant(1, make_constant<int64_t>(DType::kInt64, Shape{count}, lengths));
    Node made = node_;
    made.outputs.resize(1);
    GraphEditor::change_symbolic(node_, std::move(made));
    return ok_status();
  }

  void sum_gradient() {
    const auto of = static_cast<ValueId>(node_.attributes.i(kOf, 0));
    const Shape& shape = graph_.value(of).desc.shape;
    const TensorDesc& gradient = graph_.value(node_.inputs[0]).desc;
    const auto joint = broadcast(shape, gradient.shape);
    const bool same = !brings_backward(graph_) || shape == gradient.shape;
    if (same || !joint.ok() || !(*joint == gradient.shape)) {
      become("Identity", node_.inputs, {});
    } else {
      become("ofsdp.SumTo", node_.inputs, {{"shape", shape.axes()}});
    }
  }

  // Y = X scale, or X / scale with scale_down; the scale is a number in any type.
  Status scale() {
    const Value& x = graph_.value(node_.inputs[0]);
    OFSDP_REJECT_IF(node_.inputs.size() < 2 || graph_.value(node_.inputs[1]).constant == nullptr,
                    "expected a scale that is known while planning");
    const Constant& scale = *graph_.value(node_.inputs[1]).constant;
    OFSDP_REJECT_IF(scale.desc.numel() != 1, "expected a scale of one element, found {}",
                    scale.desc.text());
    const std::vector<double> value = to_doubles(scale.desc, scale.bytes.data());
    Constant number{{x.desc.dtype, Shape{}}, std::vector<std::byte>(dtype_size(x.desc.dtype))};
    from_doubles(value, number.desc, number.bytes.data());
    const ValueId factor = GraphEditor(graph_).add_constant(
        node_.name + ".scale", std::make_shared<const Constant>(std::move(number)));
    const bool down = node_.attributes.i("scale_down", 0) != 0;
    become(down ? "Div" : "Mul", {node_.inputs[0], factor}, node_.attributes);
    return ok_status();
  }

  // Computes the axes along which each shape was broadcast.
  Status broadcast_axes() {
    std::vector<std::vector<int64_t>> shapes;
    for (const ValueId id : node_.inputs) {
      const ConstantPtr shape = graph_.value(id).constant;
      OFSDP_REJECT_IF(shape == nullptr || shape->desc.dtype != DType::kInt64,
                      "expected shapes that are known while planning");
      shapes.push_back(*int_values(*shape));
    }
    OFSDP_REJECT_IF(shapes.size() != 2, "expected 2 inputs, found {}", shapes.size());
    const size_t rank = std::max(shapes[0].size(), shapes[1].size());
    for (size_t i = 0; i < 2; ++i) set_constant(i, axes_of(shapes[i], shapes[1 - i], rank));
    return ok_status();
  }

  static ConstantPtr axes_of(const std::vector<int64_t>& mine, const std::vector<int64_t>& other,
                             size_t rank) {
    const auto at = [&](const std::vector<int64_t>& shape, size_t axis) {
      return axis + shape.size() < rank ? int64_t{-1} : shape[axis + shape.size() - rank];
    };
    std::vector<int64_t> axes;
    for (size_t axis = 0; axis < rank; ++axis) {
      const int64_t size = at(mine, axis);
      if (size == -1 || (size == 1 && at(other, axis) > 1)) {
        axes.push_back(static_cast<int64_t>(axis));
      }
    }
    const auto count = static_cast<int64_t>(axes.size());
    return make_constant<int64_t>(DType::kInt64, Shape{count}, axes);
  }

  Graph& graph_;
  Node& node_;
};

class OrtOperators final : public Lowering {
 public:
  const OpDef* find(const std::string& domain, const std::string& name) const override {
    if (domain != kMicrosoft) return nullptr;
    const auto found = operators().find(name);
    return found == operators().end() ? nullptr : &found->second;
  }

  Result<bool> lower(Graph& graph, Node& node) const override {
    const bool own = node.op == &gradient_sum() || node.op == find(node.op->domain, node.op->name);
    return own ? Replacement(graph, node).run() : Result<bool>(false);
  }
};

}  // namespace

const Lowering& ort_operators() {
  static const OrtOperators made;
  return made;
}

void mark_gradient_sums(Graph& graph, const std::map<std::string, ValueId>& ids) {
  for (Node& node : graph.nodes) {
    if (node.op->full_name() != "Identity") continue;
    const std::string& name = graph.value(node.outputs[0]).name;
    const size_t suffix = name.rfind("_grad");
    if (suffix == std::string::npos) continue;
    const auto found = ids.find(name.substr(0, suffix));
    if (found == ids.end()) continue;
    GraphEditor::change_symbolic(node, {&gradient_sum(),
                                        node.name,
                                        {{kOf, int64_t{found->second}}},
                                        node.inputs,
                                        node.outputs,
                                        node.backward});
  }
}

}  // namespace ofsdp::importer
