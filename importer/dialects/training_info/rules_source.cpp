#include "importer/dialects/training_info/rules_source.h"

#include <algorithm>

#include "importer/onnx_import.h"

namespace ofsdp::importer {
namespace {

// The place of a state's elements in the file: one of its initializers or algorithm_tensors.
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

// Returns the rule of a parameter, or null.
const UpdateRule* rule_of(const UpdateRules& rules, const std::string& parameter) {
  const auto found = std::ranges::find(rules.parameters, parameter, &UpdateRule::parameter);
  return found == rules.parameters.end() ? nullptr : &*found;
}

class RulesOutput final : public FileOutput {
 public:
  RulesOutput(ModelOutput output, const OnnxFile& file, const UpdateRules& rules)
      : FileOutput(std::move(output)), file_(file), rules_(rules) {}

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
    // States of different parameters share their places: state0, state1, ...
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
                                                      const TrainedState&) const override {
    return output(ModelOutput::begin(file(), path));
  }
  Result<std::unique_ptr<TrainedOutput>> join_output(const std::string& ticket,
                                                     const TrainedState&) const override {
    return output(ModelOutput::join(file(), ticket));
  }

 private:
  Result<std::unique_ptr<TrainedOutput>> output(Result<ModelOutput> made) const {
    if (!made.ok()) return std::move(made).status();
    return std::unique_ptr<TrainedOutput>(
        std::make_unique<RulesOutput>(*std::move(made), file(), rules_));
  }

  const UpdateRules rules_;
  OptimizerDef optimizer_;  // the names of the states
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
