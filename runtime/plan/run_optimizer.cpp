#include "runtime/plan/run_optimizer.h"

#include <fnmatch.h>

#include <algorithm>

#include "runtime/engine/optimizer_step.h"

namespace ofsdp::runtime {
namespace {

std::string optimizer_name(const UpdateOptions& options, const RunSettings& settings) {
  if (options.kind == OptimizerKind::kPlugin) return "plugin:" + options.plugin;
  const bool transformers = options.kind == OptimizerKind::kAdamW && settings.transformers_adamw;
  return transformers ? "adamw_transformers" : std::string(name_of(options.kind));
}

OptimizerSettings settings_of(const UpdateOptions& options, bool bias_correction) {
  return {.weight_decay = options.weight_decay,
          .momentum = options.momentum,
          .nesterov = options.nesterov,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .rho = options.rho,
          .bias_correction = bias_correction};
}

bool matches(const std::string& pattern, const Parameter& p) {
  return pattern == p.name || fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0;
}

void follow_rules(const UpdateRules& rules, const Graph& graph, RunPlan& run) {
  for (const Parameter& p : graph.parameters) {
    const auto found = std::ranges::find(rules.trained, p.name);
    const bool trained = p.trained && found != rules.trained.end();
    run.rules.push_back(trained ? static_cast<int>(found - rules.trained.begin()) : -1);
    run.updates.parameters.push_back({});
  }
}

class GroupMaker {
 public:
  GroupMaker(const RunSettings& settings, const Graph& graph,
             const std::vector<OptimizerDef>& optimizers, RunPlan& run)
      : settings_(settings),
        options_(settings.options.optimizer),
        graph_(graph),
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
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      const int group = group_of(graph_.parameters[i]);
      const UpdateGroup& its = run_.updates.groups[static_cast<size_t>(group)];
      run_.updates.parameters.push_back({group, decays[i] ? its.settings.weight_decay : 0.0});
    }
    OFSDP_RETURN_IF_ERROR(check_patterns());
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
    run_.updates.groups.push_back(
        {&*found, settings_of(options, settings_.bias_correction), lr, {}});
    return {};
  }

  // 0: the run's.
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

  // Names the states of groups that hold something trained.
  void name_states() {
    std::vector<std::string>& states = run_.updates.states;
    for (size_t g = 0; g < run_.updates.groups.size(); ++g) {
      UpdateGroup& group = run_.updates.groups[g];
      bool used = false;
      for (size_t i = 0; i < graph_.parameters.size(); ++i) {
        const bool in = run_.updates.parameters[i].group == static_cast<int>(g);
        used = used || (in && graph_.parameters[i].trained);
      }
      if (!used) continue;
      run_.parameter_norms = run_.parameter_norms || group.optimizer->direction != nullptr;
      for (const std::string& name : group.optimizer->state_names(group.settings)) {
        const auto found = std::ranges::find(states, name);
        group.states.push_back(static_cast<size_t>(found - states.begin()));
        if (found == states.end()) states.push_back(name);
      }
    }
  }

  const RunSettings& settings_;
  const OptimizerOptions& options_;
  const Graph& graph_;
  const std::vector<OptimizerDef>& optimizers_;
  RunPlan& run_;
};

void take_average(const RunSettings& settings, RunPlan& run) {
  const OptimizerOptions& options = settings.options.optimizer;
  if (!options.ema) return;
  run.updates.average_decay = options.ema;
  run.updates.first_update = settings.optimizer_steps + 1;
  run.updates.states.emplace_back(kAverageState);
  run.uses_average = options.ema_use;
}

}  // namespace

Status choose_optimizer(const RunSettings& settings, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, RunPlan& run) {
  run.settings = settings_of(settings.options.optimizer, settings.bias_correction);
  if (const UpdateRules* rules = setup.source->updates()) {
    run.optimizer = setup.source->optimizer();
    run.updates.groups.push_back({run.optimizer, run.settings, {}, {}});
    run.updates.states = run.optimizer->state_names(run.settings);
    for (size_t i = 0; i < run.updates.states.size(); ++i) {
      run.updates.groups.front().states.push_back(i);
    }
    run.parameter_norms = run.optimizer->direction != nullptr;
    follow_rules(*rules, setup.graph, run);
    take_average(settings, run);
    return {};
  }
  OFSDP_RETURN_IF_ERROR(GroupMaker(settings, setup.graph, optimizers, run).make());
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

// As OptimizerStep cuts what the rank owns; of a program it sees only that there is one.
Result<std::vector<std::pair<int, int64_t>>> stretches(const ModelSetup& setup, int rank,
                                                       const RunPlan& run) {
  std::vector<UnitState> units;
  for (const Unit& unit : run.plan.units) {
    const Span owned = run.plan.owned(unit, rank);
    UnitState& state = units.emplace_back();
    state.owned_begin = owned.begin;
    state.owned_numel = owned.numel;
  }
  OFSDP_ASSIGN_OR_RETURN(const auto program, UpdateProgram::make(*setup.source->updates()));
  const OptimizerStep step(run.updates, run.plan, units, program.get(), run.rules);
  std::vector<std::pair<int, int64_t>> list;
  for (const auto& segments : step.segments()) {
    int64_t at = 0;
    for (const OptimizerStep::Segment& segment : segments) {
      list.emplace_back(segment.rule, segment.end - at);
      at = segment.end;
    }
  }
  return list;
}

}  // namespace

Status plan_device_rules(const ModelSetup& setup, int rank, RunPlan& run) {
  const bool on_device = run.device != nullptr && run.plan.offload == CpuOffload::kNone;
  if (setup.source->updates() == nullptr || !on_device) return {};
  if (run.plan.param_dtype == DType::kFloat16) {
    return input_error(
        "{}: its training_info counts updates, and the device alone knows which ones float16 "
        "skips; --cpu-offload optimizer updates on the host",
        setup.graph.file);
  }
  OFSDP_ASSIGN_OR_RETURN(const auto list, stretches(setup, rank, run));
  OFSDP_ASSIGN_OR_RETURN(run.device_rules,
                         DeviceRulesPlan::make(*setup.source->updates(), list, *run.kernels));
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
