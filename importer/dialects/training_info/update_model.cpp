#include <algorithm>
#include <map>
#include <utility>

#include "importer/dialects/training_info/training_info.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

struct DeclaredInitializer {
  int64_t type = 0;
  std::vector<int64_t> dims;
  bool floating = false;
  const onnx::TensorProto* tensor = nullptr;  // with data, if the skeleton has them

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t axis : dims) n *= axis;
    return n;
  }
};

// The initializers that a training_info may name: first its own algorithm's, then the model
// graph's. The model must outlive it.
class DeclaredInitializers {
 public:
  using Key = std::pair<int, std::string>;  // training_info (-1: the model's graph), initializer

  DeclaredInitializers(const OnnxFile& file, const onnx::ModelProto& model) : model_(model) {
    for (const Initializer& source : file.initializers()) {
      declared_[{-1, source.name}] = {onnx_number(source.dtype), source.shape.axes(), true,
                                      nullptr};
    }
    for (const auto& tensor : model.graph().initializer()) declare(-1, tensor);
    for (int k = 0; k < model.training_info_size(); ++k) {
      for (const auto& tensor : model.training_info(k).algorithm().initializer())
        declare(k, tensor);
    }
  }

  bool contains(const Key& key) const { return declared_.contains(key); }
  const DeclaredInitializer& at(const Key& key) const { return declared_.at(key); }
  // Returns algorithm k's initializer with that name.
  Key key_of(int k, const std::string& name) const {
    return declared_.contains({k, name}) ? Key{k, name} : Key{-1, name};
  }
  // Returns whether --initialize may change the file's value.
  bool is_initialized(const Key& key) const {
    for (int k = 0; k < model_.training_info_size(); ++k) {
      for (const auto& binding : model_.training_info(k).initialization_binding()) {
        if (key_of(k, binding.key()) == key) return true;
      }
    }
    return false;
  }

 private:
  void declare(int k, const onnx::TensorProto& tensor) {
    declared_[{k, tensor.name()}] = {tensor.data_type(),
                                     {tensor.dims().begin(), tensor.dims().end()},
                                     is_floating(dtype_from_onnx_number(tensor.data_type())),
                                     &tensor};
  }

  const onnx::ModelProto& model_;
  std::map<Key, DeclaredInitializer> declared_;
};

// Returns how many states a standard optimizer has (ai.onnx.preview.training's Adagrad, Adam,
// Momentum), which updates any number of tensors at once; -1: another operator.
int saved_states(const onnx::NodeProto& node) {
  if (node.domain() != kTrainingDomain) return -1;
  if (node.op_type() == "Adam") return 2;
  return node.op_type() == "Adagrad" || node.op_type() == "Momentum" ? 1 : -1;
}

bool is_optimizer(const onnx::NodeProto& node) { return saved_states(node) >= 0; }

// Reduces Adam(R, T, X1, X2, G1, G2, ...) to the operands for the tensor with output `wanted`.
Status keep_one_tensor(onnx::NodeProto& node, const std::string& wanted) {
  const int kinds = saved_states(node) + 2, all = node.input_size() - 2;
  const int tensors = all / kinds;
  OFSDP_REJECT_IF(tensors < 1 || all % kinds != 0 || node.output_size() > tensors * (kinds - 1),
                  "node '{}' ({}): expected R, T and {} inputs a tensor, found {}", node.name(),
                  node.op_type(), kinds, node.input_size());
  const auto at = std::ranges::find(node.output(), wanted) - node.output().begin();
  const int tensor = static_cast<int>(at) % tensors;
  onnx::NodeProto one = node;
  one.clear_input();
  one.clear_output();
  one.add_input(node.input(0));
  one.add_input(node.input(1));
  for (int i = 0; i < kinds; ++i) one.add_input(node.input(2 + i * tensors + tensor));
  for (int i = 0; i + 1 < kinds; ++i) {
    const int from = i * tensors + tensor;
    one.add_output(from < node.output_size() ? node.output(from) : "");
  }
  node = std::move(one);
  return {};
}

using Key = DeclaredInitializers::Key;

class UpdateModelBuilder {
 public:
  UpdateModelBuilder(const OnnxFile& file, const onnx::ModelProto& model,
                     const std::vector<AlgorithmGraph>& algorithms,
                     const std::set<std::string>& forward, SplitTraining& split)
      : model_(model),
        algorithms_(algorithms),
        forward_(forward),
        split_(split),
        declared_(file, model) {}

  Status run() {
    start_model();
    for (int k = 0; k < static_cast<int>(algorithms_.size()); ++k) {
      OFSDP_RETURN_IF_ERROR(find_bindings(k).with_prefix(format_text("training_info[{}]", k)));
    }
    find_trained();
    for (int k = 0; k < static_cast<int>(algorithms_.size()); ++k) {
      OFSDP_RETURN_IF_ERROR(add_instance(k).with_prefix(format_text("training_info[{}]", k)));
    }
    return add_outputs();
  }

 private:
  onnx::GraphProto& graph() { return *split_.update.mutable_graph(); }

  void start_model() {
    split_.update.set_ir_version(model_.ir_version());
    *split_.update.mutable_opset_import() = model_.opset_import();
    *split_.update.mutable_functions() = model_.functions();
    graph().set_name("update");
  }

  Status find_bindings(int k) {
    std::set<std::string> outputs;
    for (const auto& output : algorithms_[static_cast<size_t>(k)].graph->output())
      outputs.insert(output.name());
    for (const auto& output : model_.graph().output()) outputs.insert(output.name());
    for (const auto& binding : model_.training_info(k).update_binding()) {
      const auto refuse = [&](const std::string& why) {
        return input_error("update_binding of '{}' to '{}': {}", binding.key(), binding.value(),
                           why);
      };
      const Key key = declared_.key_of(k, binding.key());
      if (!declared_.contains(key)) return refuse("expected an initializer as its key, found none");
      if (!outputs.contains(binding.value()))
        return refuse("expected an output of the algorithm or the model as its value, found none");
      if (!bound_.insert(key).second) return refuse("the initializer is bound a second time");
    }
    return {};
  }

  void find_trained() {
    std::set<std::string> seen;
    for (const AlgorithmGraph& algorithm : algorithms_) {
      for (const auto& [output, x] : algorithm.gradients) {
        if (bound_.contains({-1, x})) seen.insert(x);
      }
    }
    split_.trained.assign(seen.begin(), seen.end());
  }

  // Returns whether the binding is a running statistic, which BatchNormalization updates itself.
  bool is_statistic(const std::string& initializer, const std::string& value) const {
    for (const auto& node : model_.graph().node()) {
      if (node.op_type() != "BatchNormalization" || node.input_size() < 5) continue;
      for (int i = 1; i <= 2 && i < node.output_size(); ++i) {
        if (node.output(i) == value && node.input(i + 2) == initializer) return true;
      }
    }
    return false;
  }

  Status add_instance(int k) {
    std::map<Key, std::string> next;
    made_.clear();
    for (const auto& binding : model_.training_info(k).update_binding()) {
      if (is_statistic(binding.key(), binding.value())) continue;
      const Key key = declared_.key_of(k, binding.key());
      const bool trained = key.first < 0 && std::ranges::count(split_.trained, key.second) > 0;
      OFSDP_REJECT_IF(!trained && forward_.contains(key.second),
                      "update_binding of '{}': expected a tensor of Gradient's xs, as the "
                      "loss depends on it",
                      binding.key());
      OFSDP_ASSIGN_OR_RETURN(next[key],
                             prefixed(format_text("update_binding of '{}'", binding.key()),
                                      value_of(k, binding.value())));
    }
    for (auto& [key, value] : next) {
      current_of(key);  // an input even if no node reads it
      current_[key] = std::move(value);
    }
    return {};
  }

  Result<std::string> value_of(int k, const std::string& name) {
    if (name.empty()) return std::string();
    if (const auto found = made_.find(name); found != made_.end()) return found->second;
    const AlgorithmGraph& algorithm = algorithms_[static_cast<size_t>(k)];
    if (const auto found = algorithm.gradients.find(name); found != algorithm.gradients.end())
      return gradient_of(found->second);
    if (const auto found = algorithm.makers.find(name); found != algorithm.makers.end())
      return add_node(k, *found->second, name);
    const Key key = declared_.key_of(k, name);
    if (declared_.contains(key)) return current_of(key);
    return input_error(
        "the update reads '{}', which is computed from the data: expected gradients "
        "and initializers alone",
        name);
  }

  std::string gradient_of(const std::string& x) {
    const std::string value = x + ".gradient";
    if (used_.insert(value).second) {
      add_input(value, {onnx::TensorProto::FLOAT, declared_.at({-1, x}).dims, true, nullptr});
      split_.leaves.push_back({UpdateLeaf::Kind::kGradient, value, x, -1, ""});
    }
    return value;
  }

  std::string current_of(const Key& key) {
    if (const auto found = current_.find(key); found != current_.end()) return found->second;
    const DeclaredInitializer& declared = declared_.at(key);
    const std::string name = fresh(key.second);
    current_[key] = name;
    const bool changes = bound_.contains(key) || declared_.is_initialized(key);
    if (!changes && declared.tensor != nullptr && (declared.numel() == 1 || !declared.floating)) {
      onnx::TensorProto& constant = *graph().add_initializer();
      constant = *declared.tensor;
      constant.set_name(name);
      return name;
    }
    add_input(name, declared);
    const bool trained = key.first < 0 && std::ranges::count(split_.trained, key.second) > 0;
    leaf_of_[key] = split_.leaves.size();
    split_.leaves.push_back({trained ? UpdateLeaf::Kind::kParameter : UpdateLeaf::Kind::kState,
                             name, key.second, key.first, ""});
    return name;
  }

  std::string fresh(const std::string& name) {
    std::string made = name;
    for (int i = 1; !used_.insert(made).second; ++i) made = format_text("{}#{}", name, i);
    return made;
  }

  onnx::ValueInfoProto info_of(const std::string& name, const DeclaredInitializer& declared) const {
    onnx::ValueInfoProto info;
    info.set_name(name);
    const int float_type = onnx::TensorProto::FLOAT;
    set_tensor_type(*info.mutable_type(),
                    declared.floating ? float_type : static_cast<int>(declared.type),
                    declared.dims);
    return info;
  }

  void add_input(const std::string& name, const DeclaredInitializer& declared) {
    *graph().add_input() = info_of(name, declared);
  }

  // Adds a node for one output, with all nodes that it needs.
  Result<std::string> add_node(int k, const onnx::NodeProto& node, const std::string& wanted) {
    onnx::NodeProto copy = node;
    OFSDP_RETURN_IF_ERROR(check(node));
    if (is_optimizer(node)) OFSDP_RETURN_IF_ERROR(keep_one_tensor(copy, wanted));
    for (std::string& input : *copy.mutable_input()) {
      OFSDP_ASSIGN_OR_RETURN(input, value_of(k, input));
    }
    for (std::string& output : *copy.mutable_output()) {
      if (output.empty()) continue;
      const std::string name = fresh(output);
      made_[output] = name;
      output = name;
    }
    *graph().add_node() = std::move(copy);
    return made_.at(wanted);
  }

  Status check(const onnx::NodeProto& node) const {
    for (const auto& attribute : node.attribute()) {
      if (!attribute.has_g() && attribute.graphs_size() == 0) continue;
      return input_error("node '{}' ({}): an update has no subgraphs", node.name(), node.op_type());
    }
    return {};
  }

  // Each output gets a separate node: a value may be bound several times and may be an input.
  Status add_outputs() {
    for (const auto& [key, leaf] : leaf_of_) {
      if (!bound_.contains(key)) continue;
      UpdateLeaf& target = split_.leaves[leaf];
      if (current_.at(key) == target.value) continue;  // a statistic
      target.next = fresh(target.initializer + ".next");
      onnx::NodeProto& node = *graph().add_node();
      node.set_op_type("Identity");
      node.set_name(target.next);
      node.add_input(current_.at(key));
      node.add_output(target.next);
      *graph().add_output() = info_of(target.next, declared_.at(key));
    }
    return {};
  }

  const onnx::ModelProto& model_;
  const std::vector<AlgorithmGraph>& algorithms_;
  const std::set<std::string>& forward_;
  SplitTraining& split_;
  DeclaredInitializers declared_;
  std::set<Key> bound_;
  std::map<Key, std::string> current_;       // each initializer's present value
  std::map<Key, size_t> leaf_of_;            // index in split_.leaves
  std::map<std::string, std::string> made_;  // the present algorithm's names -> names in the update
  std::set<std::string> used_;
};

}  // namespace

Status build_update_model(const OnnxFile& file, const onnx::ModelProto& model,
                          const std::vector<AlgorithmGraph>& algorithms,
                          const std::set<std::string>& forward, SplitTraining& split) {
  return UpdateModelBuilder(file, model, algorithms, forward, split).run();
}

}  // namespace ofsdp::importer
