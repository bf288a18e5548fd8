#include "importer/dialects/training_info/update_rules.h"

#include <algorithm>

#include "importer/dialects/training_info/state_places.h"
#include "importer/dialects/training_info/training_info.h"
#include "importer/dialects/training_info/update_tensors.h"
#include "importer/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/proto/onnx_tensor.h"

namespace ofsdp::importer {
namespace {

class RuleMaker {
 public:
  RuleMaker(SplitTraining split, Graph graph, std::string file)
      : split_(std::move(split)), graph_(std::move(graph)), file_(std::move(file)) {}

  Result<UpdateRules> run() {
    OFSDP_RETURN_IF_ERROR(tensors_.run());
    rules_.scalar_nodes = tensors_.scalar_nodes();
    OFSDP_RETURN_IF_ERROR(make_rules().with_prefix(file_ + ": training_info"));
    find_rate();
    rules_.loss = split_.loss;
    rules_.trained = split_.trained;
    rules_.graph = std::move(graph_);
    return std::move(rules_);
  }

 private:
  bool is_tensor(ValueId id) const { return tensors_.is_tensor(id); }

  Status make_rules() {
    for (const std::string& name : split_.trained) rules_.rules.push_back({.parameter = name});
    for (const UpdateLeaf& leaf : split_.leaves) OFSDP_RETURN_IF_ERROR(place(leaf));
    for (UpdateRule& rule : rules_.rules) {
      OFSDP_RETURN_IF_ERROR(check_rule(rule));
      for (size_t i = 0; i < graph_.nodes.size(); ++i) {
        const std::vector<ValueId>& outputs = graph_.nodes[i].outputs;
        const auto made = std::ranges::find_if(outputs, [](ValueId id) { return id != 0; });
        if (made != outputs.end() && is_tensor(*made) && belongs(*made, rule.parameter))
          rule.nodes.push_back(static_cast<int>(i));
      }
    }
    return {};
  }

  bool belongs(ValueId id, const std::string& parameter) {
    const std::string* name = tensors_.owner(id);
    return name != nullptr && *name == parameter;
  }

  UpdateRule* rule_of(ValueId id) {
    const std::string* name = tensors_.owner(id);
    if (name == nullptr) return nullptr;
    const auto found = std::ranges::find(rules_.rules, *name, &UpdateRule::parameter);
    return found == rules_.rules.end() ? nullptr : &*found;
  }

  Status place(const UpdateLeaf& leaf) {
    const ValueId id = graph_.find(leaf.value);
    const ValueId next = leaf.next.empty() ? 0 : graph_.find(leaf.next);
    const UpdateState state{leaf.initializer, leaf.training_info, id, next};
    if (!is_tensor(id)) {
      rules_.scalars.push_back(state);
      return {};
    }
    UpdateRule* rule = rule_of(id);
    if (leaf.kind == UpdateLeaf::Kind::kGradient) {
      if (rule != nullptr) rule->gradient = id;  // else of a parameter that is not bound
      return {};
    }
    if (rule == nullptr) {
      return input_error("'{}' is updated with no tensor of Gradient's xs: expected one",
                         leaf.initializer);
    }
    if (leaf.kind == UpdateLeaf::Kind::kParameter) {
      rule->value = id;
      rule->next = next;
      return {};
    }
    rule->states.push_back(state);
    return {};
  }

  Status check_rule(const UpdateRule& rule) const {
    if (rule.next == 0) return input_error("'{}' is bound to no new value", rule.parameter);
    const Shape& shape = graph_.value(rule.value).desc.shape;
    const auto fits = [&](ValueId id) { return id == 0 || graph_.value(id).desc.shape == shape; };
    for (const UpdateState& state : rule.states) {
      if (fits(state.value) && fits(state.next)) continue;
      return input_error("'{}' is a state of '{}': expected {}, found {}", state.initializer,
                         rule.parameter, shape.text(), graph_.value(state.value).desc.shape.text());
    }
    if (fits(rule.next)) return {};
    return input_error("the new value of '{}': expected {}, found {}", rule.parameter, shape.text(),
                       graph_.value(rule.next).desc.shape.text());
  }

  const Node* maker_of(ValueId id) const {
    for (const Node& node : graph_.nodes) {
      if (std::ranges::find(node.outputs, id) != node.outputs.end()) return &node;
    }
    return nullptr;
  }

  // R of an optimizer of the standard, a scalar of that name, or the factor of what a Sub takes off.
  void find_rate() {
    const ValueId named = graph_.find("R");
    if (named != 0 && !is_tensor(named) && is_floating(graph_.value(named).desc.dtype))
      rules_.rate = named;
    for (const Node& node : graph_.nodes) {
      if (node.op->domain == kTrainingDomain) {
        rules_.rate = node.inputs[0];
        return;
      }
    }
    if (rules_.rate != 0) return;
    const Node* node = maker_of(rules_.rules[0].next);
    while (node != nullptr && node->op->full_name() == "Identity") node = maker_of(node->inputs[0]);
    if (node == nullptr || node->op->full_name() != "Sub") return;
    node = maker_of(node->inputs[1]);
    if (node == nullptr || node->op->full_name() != "Mul") return;
    for (const ValueId id : node->inputs) {
      if (!is_tensor(id)) rules_.rate = id;
    }
  }

  SplitTraining split_;
  Graph graph_;
  std::string file_;
  UpdateTensors tensors_{split_, graph_, file_};
  UpdateRules rules_;
};

const onnx::GraphProto& graph_of(const onnx::ModelProto& model, int training_info) {
  return training_info < 0 ? model.graph() : model.training_info(training_info).algorithm();
}

// What the file has; in float32 where it is a float.
Status read_scalar(const onnx::ModelProto& model, DType dtype, UpdateState& scalar) {
  for (const auto& tensor : graph_of(model, scalar.training_info).initializer()) {
    if (tensor.name() != scalar.initializer) continue;
    OFSDP_ASSIGN_OR_RETURN(scalar.initial, constant_from_onnx(tensor));
    if (scalar.initial->desc.dtype == dtype) return {};
    const auto values = to_doubles(scalar.initial->desc, scalar.initial->bytes.data());
    Constant made{{dtype, scalar.initial->desc.shape}, {}};
    made.bytes.resize(made.desc.bytes());
    from_doubles(values, made.desc, made.bytes.data());
    scalar.initial = std::make_shared<const Constant>(std::move(made));
    return {};
  }
  OFSDP_CHECK(false, "no initializer {}", scalar.initializer);
}

Result<Graph> update_graph(const SplitTraining& split, const OnnxFile& file,
                           const Registry& registry) {
  const OnnxFile model =
      OnnxFile::of_model(file.path() + ": training_info", split.update.SerializeAsString());
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, import_onnx(model, registry));
  std::map<std::string, Shape> shapes;
  for (const ValueId id : graph.inputs) {
    std::vector<int64_t> axes;
    for (const Dim& dim : graph.value(id).declared) axes.push_back(dim.size);
    shapes[graph.value(id).name] = Shape(std::move(axes));
  }
  return specialize(graph, shapes, Mode::kTrain);
}

}  // namespace

size_t UpdateRules::most_states() const {
  size_t most = 0;
  for (const UpdateRule& rule : rules) most = std::max(most, rule.states.size());
  return most;
}

Result<std::optional<UpdateRules>> read_update_rules(const OnnxFile& file,
                                                     const Registry& registry) {
  onnx::ModelProto model;
  if (!model.ParseFromString(file.skeleton()) || !has_training_info(model)) {
    return std::optional<UpdateRules>();  // import_onnx says what is wrong with it
  }
  OFSDP_ASSIGN_OR_RETURN(SplitTraining split, split_training_info(file, model));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, update_graph(split, file, registry));
  OFSDP_ASSIGN_OR_RETURN(UpdateRules rules,
                         RuleMaker(std::move(split), std::move(graph), file.path()).run());
  for (UpdateState& scalar : rules.scalars) {
    const DType dtype = rules.graph.value(scalar.value).desc.dtype;
    OFSDP_RETURN_IF_ERROR(read_scalar(model, dtype, scalar).with_prefix(file.path()));
  }
  OFSDP_RETURN_IF_ERROR(check_places(file, rules).with_prefix(file.path() + ": training_info"));
  return std::optional(std::move(rules));
}

}  // namespace ofsdp::importer
