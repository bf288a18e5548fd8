// The options about loss, trained parameters, optimizer and schedule.
#include <algorithm>

#include "kernels/core/optimizer.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

constexpr std::string_view kOutputPrefix = "output:";
constexpr std::string_view kPluginPrefix = "plugin:";

OptionEntry loss() {
  OptionEntry entry{
      .name = "loss",
      .values = "auto, cross_entropy, nll, mse, bce_with_logits, output:NAME, plugin:NAME",
      .help = "auto: the graph's only scalar float output"};
  entry.set = [](Options& o, const std::string& text) {
    o.loss.output.clear();
    if (text.starts_with(kOutputPrefix)) {
      o.loss.kind = LossKind::kOutput;
      o.loss.output = text.substr(kOutputPrefix.size());
      return fine_or(!o.loss.output.empty(), "a name after output:");
    }
    if (text.starts_with(kPluginPrefix)) {
      o.loss.kind = LossKind::kOperator;
      o.loss.output = text.substr(kPluginPrefix.size());
      return fine_or(!o.loss.output.empty(), "an operator's domain.Name after plugin:");
    }
    Verdict verdict = set_choice(text, o.loss.kind, names_of<LossKind>());
    if (!verdict.fine) verdict.expected += ", output:NAME or plugin:NAME";
    return verdict;
  };
  entry.show = [](const Options& o) {
    if (o.loss.kind == LossKind::kOutput) return yaml_quoted("output:" + o.loss.output);
    if (o.loss.kind == LossKind::kOperator) return yaml_quoted("plugin:" + o.loss.output);
    return std::string(name_of(o.loss.kind));
  };
  return entry;
}

OptionEntry optimizer() {
  OptionEntry entry =
      entries::choice("optimizer", "PyTorch's definitions", OFSDP_FIELD(optimizer.kind));
  entry.values += ", plugin:NAME";
  entry.set = [named = entry.set](Options& o, const std::string& text) {
    if (!text.starts_with(kPluginPrefix)) {
      Verdict verdict = named(o, text);
      if (!verdict.fine) verdict.expected += " or plugin:NAME";
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

// "adamw, adam, lamb, lion": the optimizers of the help that take a setting.
std::string optimizers_with(OptimizerTakes setting) {
  std::vector<std::string> names;
  for (const std::string& name : names_of<OptimizerKind>()) {
    if ((find_optimizer(name)->traits.takes & setting) != 0) names.push_back(name);
  }
  return joined(names, ", ");
}

// "PyTorch's (adamw, adam 1e-08; lamb 1e-06)": the defaults of those that take the setting.
std::string defaults_of(double OptimizerTraits::*number, uint32_t setting) {
  std::vector<std::pair<double, std::string>> groups;
  for (const std::string& name : names_of<OptimizerKind>()) {
    const OptimizerTraits& traits = find_optimizer(name)->traits;
    if ((traits.takes & setting) != setting) continue;
    const auto same = std::ranges::find(groups, traits.*number, [](auto& g) { return g.first; });
    if (same != groups.end()) {
      same->second += ", " + name;
    } else {
      groups.emplace_back(traits.*number, name);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [value, names] : groups) texts.push_back(names + " " + show_number(value));
  return "PyTorch's (" + joined(texts, "; ") + ")";
}

OptionEntry betas() {
  OptionEntry entry{.name = "betas",
                    .values = "0.9,0.999",
                    .help = optimizers_with(kTakesBetas) + ": decay of the two averages"};
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
  OptionEntry entry{.name = "no-decay",
                    .values = "none, auto (tensors of one axis), NAME or glob; repeated",
                    .help = "parameters without weight decay",
                    .kind = OptionEntry::Kind::kRepeated};
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

OptionEntry milestones() {
  OptionEntry entry{.name = "milestones",
                    .values = "N,N,...",
                    .help = "multistep: epochs or steps at which the rate changes"};
  entry.set = [](Options& o, const std::string& text) {
    o.schedule.milestones.clear();
    for (const std::string& part : split_list(text)) {
      const auto at = parse_integer(part, 0);
      if (!at) return fine_or(false, "whole numbers of at least 0, such as 30,60");
      o.schedule.milestones.push_back(*at);
    }
    return Verdict{};
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> texts;
    for (const int64_t at : o.schedule.milestones) texts.push_back(std::to_string(at));
    return "[" + joined(texts, ", ") + "]";
  };
  return entry;
}

template <typename E>
bool any_of(E value, std::initializer_list<E> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// A plug-in's optimizer takes every setting.
OptimizerTraits traits_of(OptimizerKind kind) {
  if (kind == OptimizerKind::kPlugin) return {};
  return find_optimizer(choice_name(kind))->traits;
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
  if (name == "label-smoothing") return kind == kCrossEntropy;
  if (name == "ignore-index") return !any_of(kind, {kMse, kBceWithLogits, kOperator});
  return true;
}

}  // namespace

void take_defaults_unless(OptimizerOptions& optimizer,
                          const std::function<bool(const char*)>& given) {
  const OptimizerTraits traits = traits_of(optimizer.kind);
  if (!given("lr")) optimizer.lr = traits.lr;
  if (!given("weight-decay")) optimizer.weight_decay = traits.weight_decay;
  if (!given("eps")) optimizer.eps = traits.eps;
  if (!given("rho") || (traits.takes & kTakesRho) == 0) optimizer.rho = traits.rho;
  if (!given("betas")) optimizer.beta1 = OptimizerOptions().beta1;
  if (!given("betas")) optimizer.beta2 = traits.beta2;
}

NoEffect no_effect(const Options& options, std::string_view name) {
  if (!optimizer_uses(options.optimizer.kind, name)) {
    return {"--optimizer " + optimizer().show(options), true};
  }
  if (!schedule_uses(options.schedule.kind, name)) {
    return {"--lr-schedule " + std::string(name_of(options.schedule.kind))};
  }
  if (!loss_uses(options.loss.kind, name)) return {"--loss " + loss().show(options)};
  return {};
}

std::vector<OptionEntry> training_entries() {
  using namespace entries;
  return {
      loss(),
      choice("loss-mean", "over the global batch, or PyTorch's mean of the ranks' means",
             OFSDP_FIELD(loss.mean)),
      text("", {"prediction", "the only candidate; NAME", "graph output the loss compares"},
           OFSDP_FIELD(loss.prediction)),
      text("", {"labels", "the only candidate; NAME", "data column the loss compares"},
           OFSDP_FIELD(loss.labels)),
      integer({"ignore-index", "-100", "label left out of the loss and of its mean"}, INT64_MIN,
              OFSDP_FIELD(loss.ignore_index)),
      number({"label-smoothing", "0", "cross_entropy: share spread over all classes"}, kZeroToOne,
             OFSDP_FIELD(loss.label_smoothing)),
      repeated("", {"freeze", "NAME or glob, repeated", "initializers that stay as they are"},
               OFSDP_FIELD(freeze)),
      repeated("", {"train", "NAME or glob, repeated", "the only initializers that are trained"},
               OFSDP_FIELD(train)),
      toggle(
          {"training-info", "on, off",
           "follow the training_info of the model, where it has one: its loss and its optimizer"},
          OFSDP_FIELD(training_info)),
      toggle({"initialize", "off, on",
              "start from what the initialization graphs of the training_info give"},
             OFSDP_FIELD(initialize)),
      optimizer(),
      number({"lr", defaults_of(&OptimizerTraits::lr, 0), "learning rate"}, kAtLeastZero,
             OFSDP_FIELD(optimizer.lr)),
      number({"weight-decay", "PyTorch's (adamw 0.01, others 0)", "decay of the parameters"},
             kAtLeastZero, OFSDP_FIELD(optimizer.weight_decay)),
      number({"momentum", "0", optimizers_with(kTakesMomentum)}, kAtLeastZero,
             OFSDP_FIELD(optimizer.momentum)),
      toggle({"nesterov", "off, on", "sgd with momentum"}, OFSDP_FIELD(optimizer.nesterov)),
      betas(),
      number({"eps", defaults_of(&OptimizerTraits::eps, kTakesEps), "added to denominators"},
             kAtLeastZero, OFSDP_FIELD(optimizer.eps)),
      number({"rho", "0.9", optimizers_with(kTakesRho) + ": decay of the averages"}, kZeroToOne,
             OFSDP_FIELD(optimizer.rho)),
      no_decay(),
      parsed_or(
          "off", {"clip-grad-norm", "off, X", "largest global 2-norm of the gradient"},
          std::string(kAboveZero.text), OFSDP_FIELD(optimizer.clip_grad_norm),
          [](const std::string& text) {
            const auto norm = parse_number(text);
            return norm && *norm > 0 ? norm : std::nullopt;
          },
          show_number),
      choice("lr-schedule", "how the learning rate changes", OFSDP_FIELD(schedule.kind)),
      integer({"warmup-steps", "0", "updates on the way up to the learning rate"}, 0,
              OFSDP_FIELD(schedule.warmup_steps)),
      integer_or("auto", {"total-steps", "auto (the run's), N", "updates the schedule is made for"},
                 1, OFSDP_FIELD(schedule.total_steps)),
      number({"min-lr-ratio", "0",
              "linear, cosine, polynomial, wsd, cosine_restarts: the least "
              "rate over lr"},
             kZeroToOne, OFSDP_FIELD(schedule.min_lr_ratio)),
      number({"power", "1", "polynomial"}, kAtLeastZero, OFSDP_FIELD(schedule.power)),
      integer({"step-size", "1", "step: epochs or steps between two changes"}, 1,
              OFSDP_FIELD(schedule.step_size)),
      number({"gamma", "0.1", "step, multistep, exponential: factor of a change"}, kAtLeastZero,
             OFSDP_FIELD(schedule.gamma)),
      choice("schedule-unit", "step, multistep, exponential: what is counted",
             OFSDP_FIELD(schedule.unit)),
      milestones(),
      integer_or("auto",
                 {"decay-steps", "auto (a tenth of the total), N", "wsd: updates of the decay"}, 1,
                 OFSDP_FIELD(schedule.decay_steps)),
      integer_or("none",
                 {"restart-steps", "none, N", "cosine_restarts: updates of the first cycle"}, 1,
                 OFSDP_FIELD(schedule.restart_steps)),
      integer({"restart-mult", "1", "cosine_restarts: length of a cycle over that of the last"}, 1,
              OFSDP_FIELD(schedule.restart_mult)),
      number({"pct-start", "0.3", "onecycle: share of the updates on the way up"}, kZeroToOne,
             OFSDP_FIELD(schedule.pct_start)),
      number({"div-factor", "25", "onecycle: lr over the first rate"}, kAboveZero,
             OFSDP_FIELD(schedule.div_factor)),
      number({"final-div-factor", "1e4", "onecycle: the first rate over the last"}, kAboveZero,
             OFSDP_FIELD(schedule.final_div_factor)),
  };
}

}  // namespace ofsdp::cli
