#include "runtime/plan/run_optimizer.h"

#include <fnmatch.h>

#include <algorithm>

#include "runtime/engine/optimizer_step.h"

namespace ofsdp::runtime {
namespace {

std::string optimizer_name(const RunSettings& settings) {
  const OptimizerOptions& options = settings.options.optimizer;
  if (options.kind == OptimizerKind::kPlugin) return "plugin:" + options.plugin;
  const bool transformers = options.kind == OptimizerKind::kAdamW && settings.transformers_adamw;
  return transformers ? "adamw_transformers" : std::string(name_of(options.kind));
}

void follow_rules(const UpdateRules& rules, const Graph& graph, RunPlan& run) {
  for (const Parameter& p : graph.parameters) {
    const auto found = std::ranges::find(rules.trained, p.name);
    const bool trained = p.trained && found != rules.trained.end();
    run.rules.push_back(trained ? static_cast<int>(found - rules.trained.begin()) : -1);
    run.decays.push_back(false);
  }
}

}  // namespace

Status choose_optimizer(const RunSettings& settings, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, RunPlan& run) {
  const OptimizerOptions& options = settings.options.optimizer;
  run.settings = {.weight_decay = options.weight_decay,
                  .momentum = options.momentum,
                  .nesterov = options.nesterov,
                  .beta1 = options.beta1,
                  .beta2 = options.beta2,
                  .eps = options.eps,
                  .rho = options.rho,
                  .bias_correction = settings.bias_correction};
  if (const UpdateRules* rules = setup.source->updates()) {
    run.optimizer = setup.source->optimizer();
    follow_rules(*rules, setup.graph, run);
    return {};
  }
  const std::string name = optimizer_name(settings);
  for (const OptimizerDef& def : optimizers) {
    if (def.name == name) run.optimizer = &def;
  }
  if (run.optimizer == nullptr) return input_error("--optimizer {}: no --plugin offers it", name);
  const bool norms = options.kind == OptimizerKind::kPlugin && run.optimizer->direction != nullptr;
  if (run.device != nullptr && norms) {
    return input_error("--optimizer {} needs norms of parameters: the CPU alone has them for it",
                       name);
  }
  OFSDP_ASSIGN_OR_RETURN(run.decays, weight_decays(options, setup.graph));
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
  const OptimizerStep step(*run.optimizer, run.settings, run.plan, units, run.decays, program.get(),
                           run.rules);
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
  const auto matches = [](const std::string& pattern, const Parameter& p) {
    return pattern == p.name || fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0;
  };
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
