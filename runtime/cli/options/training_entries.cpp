// The options about what is minimised, which parameters change and how: loss, optimizer, schedule.
#include <algorithm>

#include "kernels/core/optimizer.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

constexpr Choice<LossKind> kLosses[] = {{"auto", LossKind::kAuto},
                                        {"cross_entropy", LossKind::kCrossEntropy},
                                        {"nll", LossKind::kNll},
                                        {"mse", LossKind::kMse},
                                        {"bce_with_logits", LossKind::kBceWithLogits}};
constexpr Choice<LossMean> kMeans[] = {{"global", LossMean::kGlobal},
                                       {"per_rank", LossMean::kPerRank}};
constexpr Choice<OptimizerKind> kOptimizers[] = {
#define OPTIMIZER(name, Update, ...) {#name, OptimizerKind::k##Update},
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
};
constexpr Choice<ScheduleKind> kSchedules[] = {{"constant", ScheduleKind::kConstant},
                                               {"step", ScheduleKind::kStep},
                                               {"linear", ScheduleKind::kLinear},
                                               {"cosine", ScheduleKind::kCosine},
                                               {"polynomial", ScheduleKind::kPolynomial}};
constexpr Choice<ScheduleUnit> kScheduleUnits[] = {{"epoch", ScheduleUnit::kEpoch},
                                                   {"step", ScheduleUnit::kStep}};
constexpr std::string_view kOutputPrefix = "output:";
constexpr std::string_view kPluginPrefix = "plugin:";

OptionEntry loss() {
  OptionEntry entry{"loss",
                    "auto, cross_entropy, nll, mse, bce_with_logits, output:NAME, plugin:NAME",
                    "auto: the graph's only scalar float output"};
  entry.set = [](Options& o, const std::string& text) {
    const bool is_output = text.starts_with(kOutputPrefix);
    o.loss.output = is_output ? text.substr(kOutputPrefix.size()) : std::string();
    if (is_output) {
      o.loss.kind = LossKind::kOutput;
      return fine_or(!o.loss.output.empty(), "a name after output:");
    }
    if (text.starts_with(kPluginPrefix)) {
      o.loss.kind = LossKind::kOperator;
      o.loss.output = text.substr(kPluginPrefix.size());
      return fine_or(!o.loss.output.empty(), "an operator's domain.Name after plugin:");
    }
    Verdict verdict = set_choice(std::span<const Choice<LossKind>>(kLosses), text, o.loss.kind);
    if (verdict.kind == Verdict::Kind::kWrong) verdict.expected += ", output:NAME or plugin:NAME";
    return verdict;
  };
  entry.show = [](const Options& o) {
    if (o.loss.kind == LossKind::kOutput) return yaml_quoted("output:" + o.loss.output);
    if (o.loss.kind == LossKind::kOperator) return yaml_quoted("plugin:" + o.loss.output);
    return choice_name(std::span<const Choice<LossKind>>(kLosses), o.loss.kind);
  };
  return entry;
}

OptionEntry optimizer() {
  OptionEntry entry = entries::choice("optimizer", kOptimizers, "PyTorch's definitions",
                                      OFSDP_FIELD(optimizer.kind));
  entry.values += ", plugin:NAME";
  entry.set = [named = entry.set](Options& o, const std::string& text) {
    if (!text.starts_with(kPluginPrefix)) {
      Verdict verdict = named(o, text);
      if (verdict.kind == Verdict::Kind::kWrong) verdict.expected += " or plugin:NAME";
      return verdict;
    }
    o.optimizer.kind = OptimizerKind::kPlugin;
    o.optimizer.plugin = text.substr(kPluginPrefix.size());
    return fine_or(!o.optimizer.plugin.empty(), "a name after plugin:");
  };
  entry.show = [named = entry.show](const Options& o) {
    if (o.optimizer.kind != OptimizerKind::kPlugin) return named(o);
    return yaml_quoted("plugin:" + o.optimizer.plugin);
  };
  return entry;
}

OptionEntry betas() {
  OptionEntry entry{"betas", "0.9,0.999", "adam, adamw, lamb, lion: decay of the two averages"};
  entry.set = [](Options& o, const std::string& text) {
    const std::vector<std::string> parts = split_list(text);
    const auto below_one = [](std::optional<double> x) { return x && *x >= 0 && *x < 1; };
    const auto first = parse_number(parts.front());
    const auto second = parse_number(parts.back());
    o.optimizer.beta1 = first.value_or(0);
    o.optimizer.beta2 = second.value_or(0);
    return fine_or(parts.size() == 2 && below_one(first) && below_one(second),
                   "two numbers of at least 0 and below 1, such as 0.9,0.999");
  };
  entry.show = [](const Options& o) {
    return format_text("[{}, {}]", show_number(o.optimizer.beta1), show_number(o.optimizer.beta2));
  };
  return entry;
}

OptionEntry no_decay() {
  OptionEntry entry{"no-decay", "none, auto (tensors of one axis), NAME or glob; repeated",
                    "parameters without weight decay", OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    if (text == "auto") o.optimizer.no_decay_auto = true;
    if (text != "auto" && text != "none") o.optimizer.no_decay.push_back(text);
    return fine_or(!text.empty(), "none, auto, a name or a pattern");
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> all = o.optimizer.no_decay;
    if (o.optimizer.no_decay_auto) all.insert(all.begin(), "auto");
    return yaml_list(all);
  };
  entry.clear = [](Options& o) {
    o.optimizer.no_decay_auto = false;
    o.optimizer.no_decay.clear();
  };
  return entry;
}

OptionEntry clip_grad_norm() {
  OptionEntry entry{"clip-grad-norm", "off, X", "largest global 2-norm of the gradient"};
  entry.set = [](Options& o, const std::string& text) {
    o.optimizer.clip_grad_norm = parse_number(text);
    const bool good = o.optimizer.clip_grad_norm && *o.optimizer.clip_grad_norm > 0;
    return fine_or(good || text == "off", "off or a number above 0");
  };
  entry.show = [](const Options& o) {
    return o.optimizer.clip_grad_norm ? show_number(*o.optimizer.clip_grad_norm)
                                      : std::string("off");
  };
  return entry;
}

std::vector<OptionEntry> loss_entries() {
  using namespace entries;
  return {
      loss(),
      choice("loss-mean", kMeans, "over the global batch, or PyTorch's mean of the ranks' means",
             OFSDP_FIELD(loss.mean)),
      text("", "prediction", "the only candidate; NAME", "graph output the loss compares",
           OFSDP_FIELD(loss.prediction)),
      text("", "labels", "the only candidate; NAME", "data column the loss compares",
           OFSDP_FIELD(loss.labels)),
      integer("ignore-index", "-100", "label left out of the loss and of its mean", INT64_MIN,
              OFSDP_FIELD(loss.ignore_index)),
      number("label-smoothing", "0", "cross_entropy: share spread over all classes", kZeroToOne,
             OFSDP_FIELD(loss.label_smoothing)),
      repeated("", "freeze", "NAME or glob, repeated", "initializers that stay as they are",
               OFSDP_FIELD(freeze)),
      repeated("", "train", "NAME or glob, repeated", "the only initializers that are trained",
               OFSDP_FIELD(train)),
      toggle("training-info", "on, off",
             "follow the training_info of the model, where it has one: its loss and its optimizer",
             OFSDP_FIELD(training_info)),
      toggle("initialize", "off, on",
             "start from what the initialization graphs of the training_info give",
             OFSDP_FIELD(initialize)),
  };
}

std::vector<OptionEntry> optimizer_entries() {
  using namespace entries;
  return {
      optimizer(),
      number("lr",
             "PyTorch's (adamw, adam, sgd, lamb 0.001; lion 0.0001; adadelta 1; adagrad, rmsprop "
             "0.01)",
             "learning rate", kAtLeastZero, OFSDP_FIELD(optimizer.lr)),
      number("weight-decay", "PyTorch's (adamw 0.01, others 0)", "decay of the parameters",
             kAtLeastZero, OFSDP_FIELD(optimizer.weight_decay)),
      number("momentum", "0", "sgd, rmsprop", kAtLeastZero, OFSDP_FIELD(optimizer.momentum)),
      toggle("nesterov", "off, on", "sgd with momentum", OFSDP_FIELD(optimizer.nesterov)),
      betas(),
      number("eps", "PyTorch's (adam, adamw, rmsprop 1e-8; adadelta, lamb 1e-6; adagrad 1e-10)",
             "added to denominators", kAtLeastZero, OFSDP_FIELD(optimizer.eps)),
      number("rho", "0.9 (rmsprop 0.99)", "adadelta, rmsprop: decay of the averages", kZeroToOne,
             OFSDP_FIELD(optimizer.rho)),
      no_decay(),
      clip_grad_norm(),
  };
}

std::vector<OptionEntry> schedule_entries() {
  using namespace entries;
  return {
      choice("lr-schedule", kSchedules, "how the learning rate changes",
             OFSDP_FIELD(schedule.kind)),
      integer("warmup-steps", "0", "updates on the way up to the learning rate", 0,
              OFSDP_FIELD(schedule.warmup_steps)),
      integer_or("auto", "total-steps", "auto (the run's), N", "updates the schedule is made for",
                 1, OFSDP_FIELD(schedule.total_steps)),
      number("min-lr-ratio", "0", "linear, cosine, polynomial: the last rate over lr", kZeroToOne,
             OFSDP_FIELD(schedule.min_lr_ratio)),
      number("power", "1", "polynomial", kAtLeastZero, OFSDP_FIELD(schedule.power)),
      integer("step-size", "1", "step: epochs or steps between two changes", 1,
              OFSDP_FIELD(schedule.step_size)),
      number("gamma", "0.1", "step: factor of a change", kAtLeastZero, OFSDP_FIELD(schedule.gamma)),
      choice("schedule-unit", kScheduleUnits, "step: what step-size counts",
             OFSDP_FIELD(schedule.unit)),
  };
}

template <typename E>
bool any_of(E value, std::initializer_list<E> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// A plug-in's optimizer takes every setting.
OptimizerTraits traits_of(OptimizerKind kind) {
  if (kind == OptimizerKind::kPlugin) return {};
  return find_optimizer(choice_name(std::span<const Choice<OptimizerKind>>(kOptimizers), kind))
      ->traits;
}

bool optimizer_uses(OptimizerKind kind, std::string_view name) {
  constexpr std::pair<std::string_view, OptimizerTakes> kSettings[] = {
      {"momentum", kTakesMomentum}, {"nesterov", kTakesNesterov}, {"betas", kTakesBetas},
      {"eps", kTakesEps},           {"rho", kTakesRho},
  };
  for (const auto& [setting, bit] : kSettings) {
    if (name == setting) return (traits_of(kind).takes & bit) != 0;
  }
  return true;
}

bool schedule_uses(ScheduleKind kind, std::string_view name) {
  using enum ScheduleKind;
  const bool decays = any_of(kind, {kLinear, kCosine, kPolynomial});
  if (name == "total-steps" || name == "min-lr-ratio") return decays;
  if (name == "power") return kind == kPolynomial;
  if (name == "step-size" || name == "gamma" || name == "schedule-unit") return kind == kStep;
  return true;
}

bool loss_uses(LossKind kind, std::string_view name) {
  using enum LossKind;
  if (name == "label-smoothing") return kind == kCrossEntropy;
  if (name == "ignore-index") return !any_of(kind, {kMse, kBceWithLogits, kOperator});
  return true;
}

}  // namespace

OptimizerOptions optimizer_defaults(OptimizerKind kind) {
  OptimizerOptions options;
  const OptimizerTraits traits = traits_of(kind);
  options.kind = kind;
  options.lr = traits.lr;
  options.weight_decay = traits.weight_decay;
  options.beta2 = traits.beta2;
  options.eps = traits.eps;
  options.rho = traits.rho;
  return options;
}

NoEffect no_effect(const Options& options, std::string_view name) {
  if (!optimizer_uses(options.optimizer.kind, name)) {
    return {"--optimizer " + optimizer().show(options), true};
  }
  if (!schedule_uses(options.schedule.kind, name)) {
    const std::span<const Choice<ScheduleKind>> all(kSchedules);
    return {"--lr-schedule " + choice_name(all, options.schedule.kind), false};
  }
  if (!loss_uses(options.loss.kind, name)) return {"--loss " + loss().show(options), false};
  return {};
}

std::vector<OptionEntry> training_entries() {
  std::vector<OptionEntry> table = loss_entries();
  for (OptionEntry& entry : optimizer_entries()) table.push_back(std::move(entry));
  for (OptionEntry& entry : schedule_entries()) table.push_back(std::move(entry));
  return table;
}

}  // namespace ofsdp::cli
