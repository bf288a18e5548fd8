#include "runtime/train/setup/initial_values.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "importer/dialects/training_info/rules_source.h"
#include "importer/graph/graph.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "runtime/engine/forward.h"

namespace ofsdp::runtime {

namespace {

struct InitialValue {
  int graph = 0;  // index of the initialization graph
  ValueId value = 0;
};

class GraphValues final : public InitialSource {
 public:
  explicit GraphValues(uint64_t seed) : seed_(seed) {}

  void add(const std::string& key, InitialValue value) { values_[key] = value; }
  int add(Graph graph) {
    graphs_.push_back(std::move(graph));
    return static_cast<int>(graphs_.size()) - 1;
  }
  const Graph& graph(int index) const { return graphs_[static_cast<size_t>(index)]; }

  bool has(const Initializer& initializer) const override {
    return values_.contains(initial_key(initializer));
  }

  Status read(const Initializer& initializer, int64_t first, std::span<float> dst) override {
    const std::string key = initial_key(initializer);
    if (key != held_) {
      OFSDP_ASSIGN_OR_RETURN(values_held_, compute(values_.at(key)));
      held_ = key;
    }
    std::copy_n(values_held_.begin() + first, dst.size(), dst.begin());
    return {};
  }

 private:
  // Runs only the nodes that this value needs.
  Result<std::vector<float>> compute(const InitialValue& value) const {
    Graph graph = graphs_[static_cast<size_t>(value.graph)];
    graph.outputs = {value.value};
    prune(graph, graph.outputs);
    const std::string name = graph.value(value.value).name;
    OFSDP_ASSIGN_OR_RETURN(auto outputs, run_forward(graph, {}, {seed_, 0, {}}));
    return std::move(outputs.at(name));
  }

  uint64_t seed_;
  std::vector<Graph> graphs_;
  std::map<std::string, InitialValue> values_;
  std::string held_;
  std::vector<float> values_held_;
};

// Sets a scalar that is not a float; it must be a constant.
Status set_scalar(UpdateState& scalar, const Graph& graph, ValueId id, DType dtype) {
  const ConstantPtr& constant = graph.value(id).constant;
  if (constant == nullptr || constant->desc.dtype != dtype) {
    return input_error("initialization of '{}': expected a constant {}, found {}",
                       scalar.initializer, dtype_name(dtype), graph.value(id).desc.text());
  }
  scalar.initial = constant;
  return {};
}

Result<Graph> specialized(const OnnxFile& model, const Operators& operators) {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, import_onnx(model, operators));
  if (graph.inputs.empty()) return specialize(graph, {}, Mode::kTrain, operators.lowering);
  return input_error("{}: input '{}': expected a graph without inputs", model.path(),
                     graph.value(graph.inputs[0]).name);
}

}  // namespace

Status initialize(OnnxFile& file, UpdateRules* rules, const Operators& operators, uint64_t seed) {
  OFSDP_ASSIGN_OR_RETURN(const auto initializations, read_initializations(file));
  if (initializations.empty()) {
    return input_error("--initialize: {} has no initialization in a training_info", file.path());
  }
  auto source = std::make_shared<GraphValues>(seed);
  for (const Initialization& initialization : initializations) {
    OFSDP_ASSIGN_OR_RETURN(Graph graph, specialized(initialization.model, operators));
    const int index = source->add(std::move(graph));
    for (const InitialBinding& binding : initialization.bindings) {
      const Graph& made = source->graph(index);
      const ValueId id = made.find(binding.output);
      if (id == 0) {
        return input_error(
            "{}: initialization_binding of '{}' to '{}': expected an output of the "
            "initialization, found none",
            file.path(), binding.initializer.name, binding.output);
      }
      const TensorDesc& desc = made.value(id).desc;
      if (!(desc.shape == binding.initializer.shape)) {
        return input_error("{}: initialization of '{}': expected {}, found {}", file.path(),
                           binding.initializer.name, binding.initializer.shape.text(),
                           desc.shape.text());
      }
      UpdateState* scalar = nullptr;
      for (UpdateState& candidate : rules->scalars) {
        const bool same = candidate.initializer == binding.initializer.name &&
                          candidate.training_info == binding.training_info;
        if (same) scalar = &candidate;
      }
      if (scalar != nullptr) {
        const DType dtype = rules->graph.value(scalar->value).desc.dtype;
        OFSDP_RETURN_IF_ERROR(set_scalar(*scalar, made, id, dtype).with_prefix(file.path()));
      } else if (desc.dtype == DType::kFloat32 && is_floating(binding.initializer.dtype)) {
        source->add(initial_key(binding.initializer), {index, id});
      } else {
        return input_error("{}: initialization of '{}': expected float32, found {}", file.path(),
                           binding.initializer.name, desc.text());
      }
    }
  }
  file.set_initial(std::move(source));
  return {};
}

}  // namespace ofsdp::runtime
