#include "runtime/run_optimizer.h"

#include <fnmatch.h>

#include <algorithm>

namespace ofsdp {
namespace {

std::string optimizer_name(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::kAdamW:
      return options.transformers ? "adamw_transformers" : "adamw";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdadelta:
      return "adadelta";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kLamb:
      return "lamb";
    case OptimizerKind::kPlugin:
      return "plugin:" + options.plugin;
  }
  return "";
}

// States of different rules share their places: state0, state1, ...
void follow_rules(const UpdateRules& rules, const Graph& graph, RunPlan& run) {
  std::vector<std::string> states;
  for (size_t i = 0; i < rules.most_states(); ++i) states.push_back(fmt::format("state{}", i));
  run.own_optimizer.name = "training_info";
  run.own_optimizer.states = [states](const OptimizerSettings&) { return states; };
  run.optimizer = &run.own_optimizer;
  for (const Parameter& p : graph.parameters) {
    const auto found = std::ranges::find(rules.trained, p.name);
    const bool trained = p.trained && found != rules.trained.end();
    run.rules.push_back(trained ? static_cast<int>(found - rules.trained.begin()) : -1);
    run.decays.push_back(false);
  }
}

}  // namespace

Status settle_optimizer(const OptimizerOptions& options, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, RunPlan& run) {
  run.settings = {options.weight_decay, options.momentum,       options.nesterov,
                  options.beta1,        options.beta2,          options.eps,
                  options.rho,          options.bias_correction};
  if (setup.rules) {
    follow_rules(*setup.rules, setup.graph, run);
    return {};
  }
  const std::string name = optimizer_name(options);
  for (const OptimizerDef& def : optimizers) {
    if (def.name == name) run.optimizer = &def;
  }
  if (run.optimizer == nullptr) {
    return input_error("--optimizer {}: no --plugin offers it", name);
  }
  OFSDP_ASSIGN_OR_RETURN(run.decays, weight_decays(options, setup.graph));
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

}  // namespace ofsdp
