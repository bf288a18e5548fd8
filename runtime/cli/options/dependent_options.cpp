// Options whose default or effect follows from another option.
#include <algorithm>

#include "kernels/core/optimizer.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

template <typename E>
bool any_of(E value, std::initializer_list<E> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// A plug-in's optimizer takes every setting.
OptimizerTraits traits_of(OptimizerKind kind) {
  if (kind == OptimizerKind::kPlugin) return {};
  return find_optimizer(choice_name(kind))->traits;
}

bool kind_uses(OptimizerKind kind, std::string_view name) {
  constexpr std::pair<std::string_view, OptimizerTakes> kSettings[] = {
      {"momentum", kTakesMomentum}, {"nesterov", kTakesNesterov}, {"betas", kTakesBetas},
      {"eps", kTakesEps},           {"rho", kTakesRho},
  };
  for (const auto& [setting, bit] : kSettings) {
    if (name == setting) return (traits_of(kind).takes & bit) != 0;
  }
  if (name == "muon-adjust") return kind == OptimizerKind::kMuon;
  return true;
}

// A group's optimizer counts as well.
bool optimizer_uses(const OptimizerOptions& optimizer, std::string_view name) {
  return kind_uses(optimizer.kind, name) ||
         std::ranges::any_of(optimizer.groups, [name](const GroupOptions& group) {
           return group.kind && kind_uses(*group.kind, name);
         });
}

bool schedule_uses(ScheduleKind kind, std::string_view name) {
  using enum ScheduleKind;
  const std::pair<std::string_view, std::vector<ScheduleKind>> users[] = {
      {"total-steps", {kLinear, kCosine, kPolynomial, kWsd, kOneCycle}},
      {"min-lr-ratio", {kLinear, kCosine, kPolynomial, kWsd, kCosineRestarts}},
      {"power", {kPolynomial}},
      {"step-size", {kStep}},
      {"gamma", {kStep, kMultistep, kExponential}},
      {"schedule-unit", {kStep, kMultistep, kExponential}},
      {"milestones", {kMultistep}},
      {"decay-steps", {kWsd}},
      {"restart-steps", {kCosineRestarts}},
      {"restart-mult", {kCosineRestarts}},
      {"pct-start", {kOneCycle}},
      {"div-factor", {kOneCycle}},
      {"final-div-factor", {kOneCycle}},
  };
  if (name == "warmup-steps") return kind != kOneCycle;
  const auto* const found =
      std::ranges::find(users, name, [](const auto& user) { return user.first; });
  return found == std::end(users) || std::ranges::count(found->second, kind) > 0;
}

bool loss_uses(LossKind kind, std::string_view name) {
  using enum LossKind;
  if (kind == kContrastive && (name == "prediction" || name == "labels")) return false;
  if (name == "label-smoothing") return kind == kCrossEntropy;
  if (name == "ignore-index") return !any_of(kind, {kMse, kBceWithLogits, kOperator, kContrastive});
  return true;
}

bool loss_uses(const LossOptions& loss, std::string_view name) {
  if (loss.named.empty()) return loss_uses(loss.kind, name);
  if (name == "prediction" || name == "labels") return false;
  return std::ranges::any_of(loss.named,
                             [&](const NamedLoss& one) { return loss_uses(one.kind, name); });
}

using Given = std::function<bool(const char*)>;

void take_defaults(UpdateOptions& update, const Given& given) {
  const OptimizerTraits traits = traits_of(update.kind);
  if (!given("lr")) update.lr = traits.lr;
  if (!given("weight-decay")) update.weight_decay = traits.weight_decay;
  if (!given("momentum")) update.momentum = traits.momentum;
  if (!given("eps")) update.eps = traits.eps;
  if (!given("rho") || (traits.takes & kTakesRho) == 0) update.rho = traits.rho;
  if (!given("betas")) update.beta1 = UpdateOptions().beta1;
  if (!given("betas")) update.beta2 = traits.beta2;
}

// A group with an optimizer of its own has the defaults of that; rate and decay of the run are not
// for it, other settings are.
void complete(GroupOptions& group, const UpdateOptions& run, const Given& given) {
  group.update = run;
  if (group.kind) {
    group.update.kind = *group.kind;
    group.update.plugin = group.plugin;
    take_defaults(group.update, [&given](const char* name) {
      const std::string_view said = name;
      return said != "lr" && said != "weight-decay" && given(name);
    });
  }
  if (group.lr) group.update.lr = group.lr_is_share ? *group.lr * run.lr : *group.lr;
  if (group.weight_decay) group.update.weight_decay = *group.weight_decay;
}

std::string shown(const Options& options, std::string_view name) {
  return find_entry(option_table(), name)->show(options);
}

}  // namespace

void take_defaults_unless(OptimizerOptions& optimizer,
                          const std::function<bool(const char*)>& given) {
  take_defaults(optimizer, given);
  for (GroupOptions& group : optimizer.groups) complete(group, optimizer, given);
}

NoEffect no_effect(const Options& options, std::string_view name) {
  if (!optimizer_uses(options.optimizer, name)) {
    return {"--optimizer " + shown(options, "optimizer"), true};
  }
  const bool evaluates =
      options.command == Command::kEval && !options.checkpoint.resume.empty();  // may have one
  if (name == "ema-use" && !options.optimizer.ema && !evaluates) return {"--ema off"};
  if (!schedule_uses(options.schedule.kind, name)) {
    return {"--lr-schedule " + std::string(name_of(options.schedule.kind))};
  }
  if (!loss_uses(options.loss, name)) {
    const auto& named = options.loss.named;
    return {"--loss " + (named.empty() ? shown(options, "loss") : named[0].said)};
  }
  if (name.starts_with("distill-") && options.teacher.path.empty()) return {"--teacher none"};
  return {};
}

}  // namespace ofsdp::cli
