// choose_optimizer (compile.h): from --optimizer, --group, --no-decay and related options, the
// optimizer, settings, weight decay and states of each parameter.
//
//   WeightReader  finds the parameters that Muon may update: matrices that multiply activations
//   GroupMaker    makes the UpdatePlan's groups, and assigns each parameter to one
//   choose_forms  chooses how each state is stored (--state-dtype)
//
// If the model brings an update of its own (training_info), follow_rules replaces GroupMaker.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "kernels/optimizers/parameter_updates.h"
#include "runtime/compile/compile.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {

namespace {

// Muon takes weights with two axes, except tables that a Gather reads and the head: the last
// product's weight before the first prediction.
struct MuonWeight {
  bool matrix = false;  // has two axes
  bool table = false, head = false;
  bool in_by_out = false;  // stored as [inputs, outputs] of the product

  bool taken() const { return matrix && !table && !head; }
};

// Operators that a weight passes on the way to the node that uses it, besides views.
constexpr std::array kPassed{"Cast",
                             "Transpose",
                             "QuantizeLinear",
                             "DequantizeLinear",
                             "com.microsoft.QuantizeLinear",
                             "com.microsoft.DequantizeLinear"};

bool passes_on(const Node& node) {
  const auto is_it = [&](const char* name) { return node.op->full_name() == name; };
  return node.op->view || node.op->fake_quantizes || std::ranges::any_of(kPassed, is_it);
}

// Returns true if the product with the weight is the node's last one; Attention's is not.
bool has_gemm(const Node& node) { return node.op->full_name().find("Gemm") != std::string::npos; }

class WeightReader {
 public:
  WeightReader(const Graph& graph, const LossSpec& loss) : graph_(graph), loss_(loss) {
    parameter_.assign(graph.values.size(), -1);
    transposed_.assign(graph.values.size(), false);
    found_.resize(graph.parameters.size());
  }

  std::vector<MuonWeight> read() {
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      const ValueId value = graph_.parameters[i].value;
      parameter_[static_cast<size_t>(value)] = static_cast<int>(i);
      found_[i].matrix = graph_.value(value).desc.shape.rank() == 2;
    }
    std::vector<bool> used(found_.size(), false);
    for (const Node& node : graph_.nodes) {
      pass_on(node);
      note_table(node);
      note_product(node, used);
    }
    note_head();
    return std::move(found_);
  }

 private:
  int weight(const Node& node, int input) const {
    if (input < 0 || input >= static_cast<int>(node.inputs.size())) return -1;
    return parameter_[static_cast<size_t>(node.inputs[static_cast<size_t>(input)])];
  }

  void pass_on(const Node& node) {
    const int from = weight(node, 0);
    if (from < 0 || !passes_on(node)) return;
    const auto to = static_cast<size_t>(node.outputs[0]);
    const bool turns = node.op->full_name() == "Transpose" &&
                       node.attributes.ints("perm", {1, 0}) == std::vector<int64_t>{1, 0};
    parameter_[to] = from;
    transposed_[to] = transposed_[static_cast<size_t>(node.inputs[0])] != turns;
  }

  void note_table(const Node& node) {
    for (const int input : node.op->lookup_inputs) {
      if (const int p = weight(node, input); p >= 0) found_[static_cast<size_t>(p)].table = true;
    }
  }

  // The weight is [inputs, outputs] in y = x B, and [outputs, inputs] in y = A x. The first use
  // counts.
  void note_product(const Node& node, std::vector<bool>& used) {
    if (!node.op->product) return;
    for (const bool right : {false, true}) {
      const int input = right ? 1 : 0;
      const int p = weight(node, input);
      if (p < 0 || used[static_cast<size_t>(p)]) continue;
      used[static_cast<size_t>(p)] = true;
      const bool turns = node.attributes.i(right ? "transB" : "transA", 0) != 0;
      const bool stored = transposed_[static_cast<size_t>(node.inputs[static_cast<size_t>(input)])];
      found_[static_cast<size_t>(p)].in_by_out = (right != turns) != stored;
    }
  }

  ValueId prediction() const {
    const std::string& name = loss_.prediction.empty() ? loss_.output : loss_.prediction;
    const ValueId found = graph_.find(name);
    return found != 0 || graph_.outputs.empty() ? found : graph_.outputs.front();
  }

  // Marks the weight of the last product before the prediction.
  void note_head() {
    std::set<ValueId> wanted{prediction()};
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const bool leads = std::ranges::any_of(
          node.outputs, [&](ValueId id) { return id != 0 && wanted.contains(id); });
      if (!leads) continue;
      if (node.op->product) {
        if (!node.op->full_name().ends_with("MatMul") && !has_gemm(node)) return;
        for (const int input : {0, 1}) {
          if (const int p = weight(node, input); p >= 0) found_[static_cast<size_t>(p)].head = true;
        }
        return;
      }
      wanted.insert(node.inputs.begin(), node.inputs.end());
    }
  }

  const Graph& graph_;
  const LossSpec& loss_;
  std::vector<int> parameter_;    // per value: the parameter that it is or views, or -1
  std::vector<bool> transposed_;  // per value: is the parameter transposed?
  std::vector<MuonWeight> found_;
};

// Returns one entry per parameter of the graph.
std::vector<MuonWeight> muon_weights(const Graph& graph, const LossSpec& loss) {
  return WeightReader(graph, loss).read();
}

std::string optimizer_name(const UpdateOptions& options, const RunSettings& settings) {
  if (options.kind == OptimizerKind::kPlugin) return "plugin:" + options.plugin;
  const bool transformers = options.kind == OptimizerKind::kAdamW && settings.transformers_adamw;
  return transformers ? "adamw_transformers" : std::string(name_of(options.kind));
}

OptimizerSettings settings_of(const UpdateOptions& options, bool bias_correction) {
  OptimizerSettings settings = options;
  settings.bias_correction = bias_correction;
  return settings;
}

bool matches(const std::string& pattern, const Parameter& p) {
  return pattern == p.name || fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0;
}

void follow_rules(const UpdateRules& rules, const Graph& graph, CompiledRun& run) {
  for (const Parameter& p : graph.parameters) {
    const auto found = std::ranges::find(rules.trained, p.name);
    const bool trained = p.trained && found != rules.trained.end();
    run.rules.push_back(trained ? static_cast<int>(found - rules.trained.begin()) : -1);
    ParameterUpdate& update = run.updates.parameters.emplace_back();
    for (size_t k = 0; k < run.updates.states.size(); ++k) update.states.push_back(k);
  }
}

class GroupMaker {
 public:
  GroupMaker(const RunSettings& settings, const ModelSetup& setup,
             const std::vector<OptimizerDef>& optimizers, CompiledRun& run)
      : settings_(settings),
        options_(settings.options.optimizer),
        setup_(setup),
        graph_(setup.graph),
        optimizers_(optimizers),
        run_(run) {}

  Status make() {
    OFSDP_RETURN_IF_ERROR(add("--optimizer", options_, {}));
    for (const GroupOptions& group : options_.groups) {
      OFSDP_RETURN_IF_ERROR(
          add("--group " + group.said, group.update,
              group.lr || group.kind ? std::optional(group.update.lr) : std::nullopt));
    }
    run_.optimizer = run_.updates.groups.front().optimizer;
    OFSDP_ASSIGN_OR_RETURN(const std::vector<bool> decays, weight_decays(options_, graph_));
    for (const Parameter& p : graph_.parameters) {
      run_.updates.parameters.push_back({.group = group_of(p)});
    }
    OFSDP_RETURN_IF_ERROR(check_patterns());
    OFSDP_RETURN_IF_ERROR(leave_from_muon());
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      ParameterUpdate& update = run_.updates.parameters[i];
      const UpdateGroup& group = run_.updates.groups[static_cast<size_t>(update.group)];
      update.weight_decay = decays[i] ? group.settings.weight_decay : 0.0;
    }
    name_states();
    return {};
  }

 private:
  Status add(const std::string& flag, const UpdateOptions& options, std::optional<double> lr) {
    const std::string name = optimizer_name(options, settings_);
    const auto found = std::ranges::find(optimizers_, name, &OptimizerDef::name);
    if (found == optimizers_.end()) {
      return input_error("{} {}: no --plugin offers it", flag, name);
    }
    run_.updates.groups.push_back({&*found, settings_of(options, settings_.bias_correction), lr});
    return {};
  }

  // Returns the index of the parameter's group; 0: the run's optimizer.
  int group_of(const Parameter& p) const {
    const auto found = std::ranges::find_if(
        options_.groups, [&p](const GroupOptions& group) { return matches(group.pattern, p); });
    return found == options_.groups.end() ? 0
                                          : static_cast<int>(found - options_.groups.begin()) + 1;
  }

  Status check_patterns() {
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const GroupOptions& group = options_.groups[g];
      bool any = false, takes = false;
      for (size_t i = 0; i < graph_.parameters.size(); ++i) {
        any = any || matches(group.pattern, graph_.parameters[i]);
        takes = takes || run_.updates.parameters[i].group == static_cast<int>(g) + 1;
      }
      if (!any) {
        return input_error("--group {}: matches no initializer of {}", group.pattern, graph_.file);
      }
      if (takes || !run_.warning.empty()) continue;
      run_.warning = format_text(
          "--group {}: has no effect: all that it matches is of groups before it", group.said);
    }
    return {};
  }

  // Parameters that Muon refuses follow AdamW, in groups appended to the list. If --group names a
  // matrix exactly, Muon takes it anyway.
  Status leave_from_muon() {
    const size_t given = run_.updates.groups.size();
    std::vector<int> others(given, -1);
    std::vector<MuonWeight> weights;
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      ParameterUpdate& update = run_.updates.parameters[i];
      const auto group = static_cast<size_t>(update.group);
      if (!run_.updates.groups[group].optimizer->traits.orthogonal) continue;
      if (weights.empty()) weights = muon_weights(graph_, setup_.source->settings().losses.front());
      const bool named =
          group > 0 && options_.groups[group - 1].pattern == graph_.parameters[i].name;
      const TensorDesc& desc = graph_.value(graph_.parameters[i].value).desc;
      const bool matrix = weights[i].matrix && desc.numel() > 0;
      if (matrix && (named || weights[i].taken())) {
        update.adjust = adjust_of(desc.shape, weights[i].in_by_out);
        continue;
      }
      if (others[group] < 0) {
        OFSDP_RETURN_IF_ERROR(add_adamw(group));
        others[group] = static_cast<int>(run_.updates.groups.size()) - 1;
      }
      update.group = others[group];
    }
    return {};
  }

  double adjust_of(const Shape& shape, bool in_by_out) const {
    const int64_t rows = shape[in_by_out ? 1 : 0], columns = shape[in_by_out ? 0 : 1];
    return options_.muon_adjust == MuonAdjust::kOriginal
               ? updates::Muon::original_adjust(rows, columns)
               : updates::Muon::rms_adjust(rows, columns);
  }

  // Keeps the group's numbers but for the weight decay: the one of --group, else AdamW's default.
  Status add_adamw(size_t group) {
    UpdateOptions numbers = options_;
    std::optional<double> decay;
    if (group > 0) {
      numbers = options_.groups[group - 1].update;
      decay = options_.groups[group - 1].weight_decay;
    }
    numbers.kind = OptimizerKind::kAdamW;
    numbers.weight_decay = decay.value_or(find_optimizer("adamw")->traits.weight_decay);
    return add("--optimizer muon, for what it does not take,", numbers,
               run_.updates.groups[group].lr);
  }

  // Numbers the states of trained parameters, group by group.
  void name_states() {
    for (size_t g = 0; g < run_.updates.groups.size(); ++g) {
      for (size_t i = 0; i < graph_.parameters.size(); ++i) {
        ParameterUpdate& update = run_.updates.parameters[i];
        if (update.group != static_cast<int>(g) || !graph_.parameters[i].trained) continue;
        const OptimizerDef& optimizer = *run_.updates.groups[g].optimizer;
        run_.parameter_norms = run_.parameter_norms || optimizer.needs_norms();
        run_.keeps_gradients = run_.keeps_gradients || optimizer.keeps_gradient();
        if (optimizer.keeps_gradient()) take_matrices(graph_.parameters[i], optimizer, update);
        name_states(optimizer, run_.updates.groups[g].settings, update);
      }
    }
  }

  void take_matrices(const Parameter& p, const OptimizerDef& optimizer, ParameterUpdate& update) {
    const Shape& shape = graph_.value(p.value).desc.shape;
    if (shape.rank() < 2 || shape.numel() == 0) return;
    const int64_t rows = shape[shape.rank() - 2], columns = shape[shape.rank() - 1];
    update.shape = {shape.numel() / (rows * columns), rows, columns};
    update.factored = optimizer.factors();
  }

  void name_states(const OptimizerDef& optimizer, const OptimizerSettings& settings,
                   ParameterUpdate& update) {
    const auto& factors = optimizer.traits.factors;
    const std::vector<std::string> names =
        update.factored ? std::vector<std::string>(factors.begin(), factors.end())
                        : optimizer.state_names(settings);
    std::vector<std::string>& states = run_.updates.states;
    for (const std::string& name : names) {
      const auto found = std::ranges::find(states, name);
      update.states.push_back(static_cast<size_t>(found - states.begin()));
      if (found == states.end()) states.push_back(name);
    }
  }

  const RunSettings& settings_;
  const OptimizerOptions& options_;
  const ModelSetup& setup_;
  const Graph& graph_;
  const std::vector<OptimizerDef>& optimizers_;
  CompiledRun& run_;
};

bool never_negative(const UpdatePlan& updates, const std::string& state) {
  return std::ranges::any_of(updates.groups, [&state](const UpdateGroup& group) {
    const OptimizerTraits& traits = group.optimizer->traits;
    for (size_t i = 0; i < traits.states.size(); ++i) {
      if (traits.states[i] != nullptr && traits.states[i] == state)
        return (traits.squares >> i & 1) != 0;
    }
    return false;
  });
}

// Sets how each state is stored (--state-dtype).
Status choose_forms(const RunSettings& settings, const ModelSetup& setup, CompiledRun& run) {
  const StateDType dtype = settings.options.optimizer.state_dtype;
  if (dtype == StateDType::kFloat32) return {};
  if (setup.source->updates() != nullptr) {
    return input_error("--state-dtype {}: expected an --optimizer, found the training_info of {}",
                       name_of(dtype), setup.graph.file);
  }
  for (const UpdateGroup& group : run.updates.groups) {
    const OptimizerDef& optimizer = *group.optimizer;
    if (optimizer.name.starts_with("plugin:")) {
      return input_error("--state-dtype {}: expected an optimizer that is built in, found {}",
                         name_of(dtype), optimizer.name);
    }
    if (!optimizer.factors()) continue;
    return input_error(
        "--state-dtype {}: expected an optimizer with a state an element, found {}, which keeps "
        "sums of rows and columns in float32",
        name_of(dtype), optimizer.name);
  }
  run.updates.seed = settings.options.run.seed;
  for (const std::string& state : run.updates.states) {
    run.updates.forms.push_back(state_form(dtype, never_negative(run.updates, state)));
  }
  return {};
}

void take_average(const RunSettings& settings, CompiledRun& run) {
  const OptimizerOptions& options = settings.options.optimizer;
  if (!options.ema) return;
  run.updates.average_decay = options.ema;
  run.updates.first_update = settings.optimizer_steps + 1;
  run.updates.states.emplace_back(kAverageState);
  run.uses_average = options.ema_use;
}

}  // namespace

Status choose_optimizer(const RunSettings& settings, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, CompiledRun& run) {
  run.evaluated = settings.evaluated;
  run.settings = settings_of(settings.options.optimizer, settings.bias_correction);
  if (const UpdateRules* rules = setup.source->updates()) {
    run.optimizer = setup.source->optimizer();
    run.updates.groups.push_back({run.optimizer, run.settings, {}});
    run.updates.states = run.optimizer->state_names(run.settings);
    run.parameter_norms = run.optimizer->needs_norms();
    follow_rules(*rules, setup.graph, run);
    OFSDP_RETURN_IF_ERROR(choose_forms(settings, setup, run));
    take_average(settings, run);
    return {};
  }
  OFSDP_RETURN_IF_ERROR(GroupMaker(settings, setup, optimizers, run).make());
  OFSDP_RETURN_IF_ERROR(choose_forms(settings, setup, run));
  for (const UpdateGroup& group : run.updates.groups) {
    const bool norms =
        group.optimizer->name.starts_with("plugin:") && group.optimizer->direction != nullptr;
    if (run.device != nullptr && norms) {
      return input_error("--optimizer {} needs norms of parameters: the CPU alone has them for it",
                         group.optimizer->name);
    }
  }
  take_average(settings, run);
  return {};
}

namespace {

// Returns rule and length for each row of the rank's shards.
std::vector<std::pair<int, int64_t>> stretches(int rank, const CompiledRun& run) {
  const UpdateTable table(run.updates, run.shards, rank, run.rules);
  std::vector<std::pair<int, int64_t>> list;
  for (const Unit& unit : run.shards.units) {
    for (const UpdateRow& row : table.rows(unit.id)) {
      list.emplace_back(row.rule, row.end - row.begin);
    }
  }
  return list;
}

}  // namespace

Status plan_device_rules(const ModelSetup& setup, int rank, CompiledRun& run) {
  const bool on_device = run.device != nullptr && run.shards.offload == CpuOffload::kNone;
  if (setup.source->updates() == nullptr || !on_device) return {};
  if (run.shards.param_dtype == DType::kFloat16) {
    return input_error(
        "{}: its training_info counts updates, and the device alone knows which ones float16 "
        "skips; --cpu-offload optimizer updates on the host",
        setup.graph.file);
  }
  OFSDP_ASSIGN_OR_RETURN(
      run.device_rules,
      DeviceRulesPlan::make(*setup.source->updates(), stretches(rank, run), *run.kernels));
  return {};
}

Result<std::vector<bool>> weight_decays(const OptimizerOptions& options, const Graph& graph) {
  for (const std::string& pattern : options.no_decay) {
    if (std::ranges::none_of(graph.parameters,
                             [&](const Parameter& p) { return matches(pattern, p); })) {
      return input_error("--no-decay {}: matches no initializer of {}", pattern, graph.file);
    }
  }
  std::vector<bool> decays;
  for (const Parameter& p : graph.parameters) {
    const bool one_axis = graph.value(p.value).desc.shape.rank() <= 1;
    const bool left_out = (options.no_decay_auto && one_axis) ||
                          std::ranges::any_of(options.no_decay, [&](const std::string& pattern) {
                            return matches(pattern, p);
                          });
    decays.push_back(!left_out);
  }
  return decays;
}

}  // namespace ofsdp::runtime
