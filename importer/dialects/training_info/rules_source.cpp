#include "importer/dialects/training_info/rules_source.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "importer/dialects/training_info/training_info.h"
#include "importer/graph/graph.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

bool is_elementwise(const Node& node) {
  const std::string name = node.op->full_name();
  if (node.op->domain == kTrainingDomain || name == "Where" || name == "Clip") return true;
  return node.op->layout == LayoutRule::kElementwise && !node.op->random && name != "Dropout";
}

// Finds the tensors among an update's values, and each one's parameter; see [Note: what an update
// may be]. Split and graph must outlive it.
class UpdateTensors {
 public:
  UpdateTensors(const SplitTraining& split, const Graph& graph, const std::string& file)
      : split_(split), graph_(graph), file_(file) {}

  Status run() {
    find_tensors();
    joined_.resize(graph_.values.size());
    std::iota(joined_.begin(), joined_.end(), 0);
    own_leaves();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      OFSDP_RETURN_IF_ERROR(join(static_cast<int>(i))
                                .with_prefix(format_text("{}: training_info: node '{}' ({})", file_,
                                                         node.name, node.op->full_name())));
    }
    return {};
  }

  bool is_tensor(ValueId id) const { return tensors_.contains(id); }
  // Returns a tensor's parameter; null: none.
  const std::string* owner(ValueId id) { return owner_of_set(root(id)); }
  // Returns the nodes that read only scalars, in order.
  const std::vector<int>& scalar_nodes() const { return scalar_nodes_; }

 private:
  // A bound scalar is a one-element tensor if the next value depends on a tensor.
  void find_tensors() {
    for (const UpdateLeaf& leaf : split_.leaves) {
      const ValueId id = graph_.find(leaf.value);
      const bool scalar =
          leaf.kind == UpdateLeaf::Kind::kState && graph_.value(id).desc.numel() == 1;
      if (!scalar) tensors_.insert(id);
    }
    for (bool more = true; more;) {
      more = false;
      for (const Node& node : graph_.nodes) {
        if (!std::ranges::any_of(node.inputs, [&](ValueId id) { return is_tensor(id); })) continue;
        for (const ValueId id : node.outputs) more |= id != 0 && tensors_.insert(id).second;
      }
      for (const UpdateLeaf& leaf : split_.leaves) {
        if (leaf.next.empty() || !is_tensor(graph_.find(leaf.next))) continue;
        more |= tensors_.insert(graph_.find(leaf.value)).second;
      }
    }
  }

  void own_leaves() {
    for (const UpdateLeaf& leaf : split_.leaves) {
      if (leaf.kind != UpdateLeaf::Kind::kState) {
        owners_[graph_.find(leaf.value)] = leaf.initializer;
      }
    }
  }

  static size_t at(int id) { return static_cast<size_t>(id); }

  int root(ValueId id) {
    for (int parent = joined_[at(id)]; parent != id; parent = joined_[at(id)]) {
      id = joined_[at(id)] = joined_[at(parent)];
    }
    return id;
  }

  const std::string* owner_of_set(int set) const {
    const auto found = owners_.find(set);
    return found == owners_.end() ? nullptr : &found->second;
  }

  Status unite(ValueId a, ValueId b) {
    const int x = root(a), y = root(b);
    if (x == y) return {};
    const std::string *first = owner_of_set(x), *second = owner_of_set(y);
    OFSDP_REJECT_IF(first != nullptr && second != nullptr && *first != *second,
                    "mixes the parameters '{}' and '{}': expected an update of each by itself",
                    *first, *second);
    if (second != nullptr) owners_[x] = *second;
    joined_[static_cast<size_t>(y)] = x;
    return {};
  }

  Status join(int index) {
    const Node& node = graph_.nodes[static_cast<size_t>(index)];
    std::vector<ValueId> tensors;
    for (const ValueId id : node.inputs) {
      if (id != 0 && is_tensor(id)) tensors.push_back(id);
    }
    if (tensors.empty()) {
      scalar_nodes_.push_back(index);
      return {};
    }
    for (const ValueId id : node.outputs) {
      if (id != 0) tensors.push_back(id);
    }
    for (const ValueId id : tensors) OFSDP_RETURN_IF_ERROR(unite(tensors[0], id));
    OFSDP_REJECT_IF(!is_elementwise(node),
                    "is not elementwise, so it cannot be computed on a shard");
    return check_shapes(node, tensors);
  }

  Status check_shapes(const Node& node, const std::vector<ValueId>& tensors) const {
    const Shape& shape = graph_.value(tensors[0]).desc.shape;
    for (const ValueId id : tensors) {
      const Value& value = graph_.value(id);
      OFSDP_REJECT_IF(!(value.desc.shape == shape),
                      "expected {} of the shape of '{}', {}, found {}", value.name,
                      graph_.value(tensors[0]).name, shape.text(), value.desc.shape.text());
      const bool known = value.desc.dtype == DType::kFloat32 || value.desc.dtype == DType::kBool;
      OFSDP_REJECT_IF(!known, "'{}': expected float32 or bool, found {}", value.name,
                      dtype_name(value.desc.dtype));
    }
    for (const ValueId id : node.inputs) {
      if (id == 0 || is_tensor(id)) continue;
      const Value& value = graph_.value(id);
      if (value.desc.numel() == 1 && value.desc.shape.rank() <= shape.rank()) continue;
      return input_error("'{}': expected a scalar, found {}", value.name, value.desc.text());
    }
    return {};
  }

  const SplitTraining& split_;
  const Graph& graph_;
  const std::string& file_;
  std::set<ValueId> tensors_;
  std::vector<int> joined_;            // union-find over values
  std::map<int, std::string> owners_;  // root -> parameter
  std::vector<int> scalar_nodes_;
};

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
    for (const std::string& name : split_.trained) rules_.parameters.push_back({.parameter = name});
    for (const UpdateLeaf& leaf : split_.leaves) OFSDP_RETURN_IF_ERROR(place(leaf));
    for (UpdateRule& rule : rules_.parameters) {
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
    const auto found = std::ranges::find(rules_.parameters, *name, &UpdateRule::parameter);
    return found == rules_.parameters.end() ? nullptr : &*found;
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
      if (rule != nullptr) rule->gradient = id;  // otherwise the parameter is not bound
      return {};
    }
    OFSDP_REJECT_IF(rule == nullptr,
                    "'{}' is updated with no tensor of Gradient's xs: expected one",
                    leaf.initializer);
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

  // The rate is R in the standard's optimizers, a scalar with that name, or the factor in the step
  // that a Sub subtracts.
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
    const Node* node = maker_of(graph_, rules_.parameters[0].next);
    while (node != nullptr && node->op->full_name() == "Identity")
      node = maker_of(graph_, node->inputs[0]);
    if (node == nullptr || node->op->full_name() != "Sub") return;
    node = maker_of(graph_, node->inputs[1]);
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

// Reads the value in the file; a float becomes float32.
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
  return input_error("training_info: there is no initializer '{}'", scalar.initializer);
}

Result<Graph> update_graph(const SplitTraining& split, const OnnxFile& file,
                           const Operators& operators) {
  const OnnxFile model =
      OnnxFile::of_model(file.path() + ": training_info", split.update.SerializeAsString());
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, import_onnx(model, operators));
  std::map<std::string, Shape> shapes;
  for (const ValueId id : graph.inputs) {
    std::vector<int64_t> axes;
    for (const Dim& dim : graph.value(id).declared) axes.push_back(dim.size);
    shapes[graph.value(id).name] = Shape(std::move(axes));
  }
  return specialize(graph, shapes, Mode::kTrain, operators.lowering);
}

}  // namespace

Result<std::optional<TrainingInfo>> read_training_info(const OnnxFile& file,
                                                       const Operators& operators) {
  onnx::ModelProto model;
  if (!model.ParseFromString(file.skeleton()) || !has_training_info(model)) {
    return std::optional<TrainingInfo>();  // import_onnx reports the error
  }
  OFSDP_ASSIGN_OR_RETURN(SplitTraining split, split_training_info(file, model));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, update_graph(split, file, operators));
  std::string forward = split.forward.SerializeAsString();
  OFSDP_ASSIGN_OR_RETURN(UpdateRules rules,
                         RuleMaker(std::move(split), std::move(graph), file.path()).run());
  for (UpdateState& scalar : rules.scalars) {
    const DType dtype = rules.graph.value(scalar.value).desc.dtype;
    OFSDP_RETURN_IF_ERROR(read_scalar(model, dtype, scalar).with_prefix(file.path()));
  }
  OFSDP_RETURN_IF_ERROR(check_places(file, rules).with_prefix(file.path() + ": training_info"));
  return std::optional(TrainingInfo{std::move(rules), std::move(forward)});
}

namespace {

// A state's elements in the file: an initializer or an entry of algorithm_tensors.
struct StatePlace {
  bool in_model = false;
  size_t index = 0;
};

Result<StatePlace> find_state(const OnnxFile& file, const UpdateState& state) {
  const auto& weights = file.initializers();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (state.training_info < 0 && weights[i].name == state.initializer) return StatePlace{true, i};
  }
  const auto& tensors = file.contents().algorithm_tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].training_info == state.training_info &&
        tensors[i].initializer.name == state.initializer) {
      return StatePlace{false, i};
    }
  }
  return input_error(
      "'{}': expected an initializer of the algorithm, or a floating-point one of the model's "
      "graph, found neither",
      state.initializer);
}

const Initializer& state_source(const OnnxFile& file, const StatePlace& place) {
  if (place.in_model) return file.initializers()[place.index];
  return file.contents().algorithm_tensors[place.index].initializer;
}

Status check_place(const OnnxFile& file, const UpdateState& state) {
  OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(file, state));
  const Initializer& source = state_source(file, place);
  const bool list = source.encoding == Initializer::Encoding::kList && is_floating(source.dtype);
  if (state.next == 0 || place.in_model || !list) return {};
  return input_error("'{}': expected its {} as raw_data, found a list", state.initializer,
                     dtype_name(source.dtype));
}

// Returns a parameter's rule, or null.
const UpdateRule* rule_of(const UpdateRules& rules, const std::string& parameter) {
  const auto found = std::ranges::find(rules.parameters, parameter, &UpdateRule::parameter);
  return found == rules.parameters.end() ? nullptr : &*found;
}

class RulesOutput final : public FileOutput {
 public:
  RulesOutput(ModelOutput output, bool inference, const OnnxFile& file, const UpdateRules& rules)
      : FileOutput(std::move(output), inference), file_(file), rules_(rules) {}

  Status write_state(const Parameter& p, size_t k, int64_t first,
                     std::span<const float> src) const override {
    const UpdateRule* rule = rule_of(rules_, p.name);
    if (rule == nullptr || k >= rule->states.size() || rule->states[k].next == 0) return {};
    OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(file_, rule->states[k]));
    return write_floats(place, first, src);
  }

  Status write_scalar(size_t k, std::span<const std::byte> value) const override {
    OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(file_, rules_.scalars[k]));
    const bool floating = is_floating(state_source(file_, place).dtype);
    if (!floating) return output_.write_scalar(place.index, value);
    return write_floats(place, 0, {reinterpret_cast<const float*>(value.data()), 1});
  }

 private:
  Status write_floats(const StatePlace& place, int64_t first, std::span<const float> src) const {
    return place.in_model ? output_.write(place.index, first, src)
                          : output_.write_state(place.index, first, src);
  }

  const OnnxFile& file_;
  const UpdateRules& rules_;
};

class RulesSource final : public TrainingSource {
 public:
  RulesSource(OnnxFile file, Graph symbolic, const Lowering* lowering, UpdateRules rules)
      : TrainingSource(std::move(file), std::move(symbolic), lowering), rules_(std::move(rules)) {
    // All parameters' states have common names: state0, state1, ...
    std::vector<std::string> states;
    for (size_t i = 0; i < rules_.most_states(); ++i) states.push_back(format_text("state{}", i));
    optimizer_.name = "training_info";
    optimizer_.states = [states](const OptimizerSettings&) { return states; };
  }

  const UpdateRules* updates() const override { return &rules_; }
  const OptimizerDef* optimizer() const override { return &optimizer_; }

  Status load_state(const Parameter& p, size_t k, int64_t first,
                    std::span<float> dst) const override {
    const UpdateRule* rule = rule_of(rules_, p.name);
    if (rule == nullptr || k >= rule->states.size()) return {};
    OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(file(), rule->states[k]));
    return file().read(state_source(file(), place), first, dst);
  }

  Result<std::unique_ptr<TrainedOutput>> begin_output(const std::string& path,
                                                      const TrainedState& state) const override {
    return output(ModelOutput::begin(file(), path), state);
  }
  Result<std::unique_ptr<TrainedOutput>> join_output(const std::string& ticket,
                                                     const TrainedState& state) const override {
    return output(ModelOutput::join(file(), ticket), state);
  }

 private:
  Result<std::unique_ptr<TrainedOutput>> output(Result<ModelOutput> made,
                                                const TrainedState& state) const {
    if (!made.ok()) return std::move(made).status();
    return std::unique_ptr<TrainedOutput>(
        std::make_unique<RulesOutput>(*std::move(made), state.inference, file(), rules_));
  }

  const UpdateRules rules_;
  OptimizerDef optimizer_;  // state names
};

}  // namespace

Status check_places(const OnnxFile& file, const UpdateRules& rules) {
  for (const UpdateState& scalar : rules.scalars) OFSDP_RETURN_IF_ERROR(check_place(file, scalar));
  for (const UpdateRule& rule : rules.parameters) {
    for (const UpdateState& state : rule.states) OFSDP_RETURN_IF_ERROR(check_place(file, state));
  }
  return {};
}

Result<std::unique_ptr<TrainingSource>> open_rules_source(OnnxFile file, TrainingInfo info,
                                                          const std::vector<std::string>& freeze,
                                                          const Operators& operators) {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, import_onnx(file, operators, info.forward));
  OFSDP_ASSIGN_OR_RETURN(Graph chosen,
                         choose_candidates(graph, {freeze, info.rules.trained, false}));
  return std::unique_ptr<TrainingSource>(std::make_unique<RulesSource>(
      std::move(file), std::move(chosen), operators.lowering, std::move(info.rules)));
}

}  // namespace ofsdp::importer
