// Options about the optimizer, parameter groups and the weights' average.
#include <algorithm>

#include "kernels/core/optimizer.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

namespace {

// A plug-in's optimizer takes every setting.
OptimizerTraits find_traits(OptimizerKind kind) {
  if (kind == OptimizerKind::kPlugin) return {};
  return find_optimizer(choice_name(kind))->traits;
}

std::string show_optimizer(const Options& o) {
  if (o.optimizer.kind != OptimizerKind::kPlugin) return choice_name(o.optimizer.kind);
  return yaml_quoted("plugin:" + o.optimizer.plugin);
}

// An entry for some optimizers; a group's optimizer counts too.
OptionEntry for_kinds(std::function<bool(OptimizerKind)> uses, OptionEntry entry) {
  entry.no_effect = [uses = std::move(uses)](const Options& o) {
    const bool used = uses(o.optimizer.kind) ||
                      std::ranges::any_of(o.optimizer.groups, [&](const GroupOptions& group) {
                        return group.kind && uses(*group.kind);
                      });
    return used ? NoEffect() : NoEffect{"--optimizer " + show_optimizer(o), true};
  };
  return entry;
}

// An entry for optimizers that take the setting.
OptionEntry for_optimizers(OptimizerTakes setting, OptionEntry entry) {
  return for_kinds(
      [setting](OptimizerKind kind) { return (find_traits(kind).takes & setting) != 0; },
      std::move(entry));
}

OptionEntry optimizer() {
  OptionEntry entry = entries::choice("optimizer", "the update rule, as PyTorch defines it",
                                      OFSDP_FIELD(optimizer.kind));
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
  entry.show = show_optimizer;
  return entry;
}

// Returns "adamw, adam, lamb, lion": the optimizers that take a setting, for the help.
std::string optimizers_with(OptimizerTakes setting) {
  std::vector<std::string> names;
  for (const std::string& name : names_of<OptimizerKind>()) {
    if ((find_optimizer(name)->traits.takes & setting) != 0) names.push_back(name);
  }
  return joined(names, ", ");
}

// Returns "PyTorch's (adamw, adam 1e-08; lamb 1e-06)": the defaults, for optimizers with the
// setting.
std::string list_defaults(double OptimizerTraits::*number, uint32_t setting) {
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

// "3e-4", or "0.1x" to multiply the run's rate.
bool read_group_rate(std::string text, GroupOptions& group) {
  group.lr_is_share = text.ends_with('x');
  if (group.lr_is_share) text.pop_back();
  group.lr = parse_number(text);
  return group.lr && *group.lr >= 0;
}

bool read_group_optimizer(const std::string& text, GroupOptions& group) {
  if (text.starts_with(kPluginPrefix)) {
    group.kind = OptimizerKind::kPlugin;
    group.plugin = text.substr(kPluginPrefix.size());
    return !group.plugin.empty();
  }
  group.kind = choice_named<OptimizerKind>(matched_name(text, names_of<OptimizerKind>()));
  return group.kind.has_value();
}

Verdict read_group_value(const std::string& key, const std::string& value, GroupOptions& group) {
  if (key == "lr") {
    return fine_or(read_group_rate(value, group), "lr=X or lr=Xx (of --lr), X at least 0");
  }
  if (key == "weight_decay") {
    group.weight_decay = parse_number(value);
    return fine_or(group.weight_decay && *group.weight_decay >= 0, "weight_decay=X, at least 0");
  }
  if (key == "optimizer") {
    return {.fine = read_group_optimizer(value, group),
            .expected =
                "optimizer= one of " + joined(names_of<OptimizerKind>(), ", ") + " or plugin:NAME",
            .hint = name_hint(value, names_of<OptimizerKind>())};
  }
  return fine_or(false, "lr=, weight_decay= or optimizer= after PATTERN:");
}

// Returns where the first key starts: after the last ':' before the first '=' that follows a key.
// Names may contain either.
size_t keys_begin(const std::string& text) {
  for (size_t at = text.find('='); at != std::string::npos; at = text.find('=', at + 1)) {
    const size_t colon = text.rfind(':', at);
    if (colon == std::string::npos) continue;
    const std::string key = text.substr(colon + 1, at - colon - 1);
    if (key == "lr" || key == "weight_decay" || key == "optimizer") return colon + 1;
  }
  return 0;
}

OptionEntry group() {
  OptionEntry entry{.name = "group",
                    .values = "PATTERN:key=value[,key=value]; repeated",
                    .help =
                        "lr (a number, or 0.1x of --lr), weight_decay and optimizer of some "
                        "parameters; the first that matches counts",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    GroupOptions group;
    group.said = text;
    const size_t begin = keys_begin(text);
    if (begin < 2) return fine_or(false, "PATTERN:key=value with lr, weight_decay or optimizer");
    group.pattern = text.substr(0, begin - 1);
    for (const std::string& part : split_list(text.substr(begin))) {
      const size_t equals = std::min(part.find('='), part.size());
      const std::string value = part.substr(std::min(equals + 1, part.size()));
      Verdict verdict = read_group_value(part.substr(0, equals), value, group);
      if (!verdict.fine) return verdict;
    }
    o.optimizer.groups.push_back(std::move(group));
    return Verdict{};
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> all;
    for (const GroupOptions& group : o.optimizer.groups) all.push_back(group.said);
    return yaml_list(all);
  };
  entry.clear = [](Options& o) { o.optimizer.groups.clear(); };
  return entry;
}

}  // namespace

std::vector<OptionEntry> optimizer_entries() {
  using namespace entries;
  const auto is_muon = [](OptimizerKind kind) { return kind == OptimizerKind::kMuon; };
  return {
      in_training_info(optimizer()),
      in_training_info(number({"lr", list_defaults(&OptimizerTraits::lr, 0), "learning rate"},
                              kAtLeastZero, OFSDP_FIELD(optimizer.lr))),
      in_training_info(number(
          {"weight-decay", "PyTorch's (adamw 0.01, muon 0.1, others 0)", "decay of the parameters"},
          kAtLeastZero, OFSDP_FIELD(optimizer.weight_decay))),
      in_training_info(for_optimizers(
          kTakesMomentum,
          number({"momentum", list_defaults(&OptimizerTraits::momentum, kTakesMomentum),
                  optimizers_with(kTakesMomentum)},
                 kAtLeastZero, OFSDP_FIELD(optimizer.momentum)))),
      for_kinds(is_muon, choice("muon-adjust", "muon: how a rate follows the shape of a matrix",
                                OFSDP_FIELD(optimizer.muon_adjust))),
      in_training_info(for_optimizers(
          kTakesNesterov,
          toggle({"nesterov", "off, on", "sgd with momentum"}, OFSDP_FIELD(optimizer.nesterov)))),
      in_training_info(for_optimizers(kTakesBetas, betas())),
      in_training_info(for_optimizers(
          kTakesEps,
          number({"eps", list_defaults(&OptimizerTraits::eps, kTakesEps), "added to denominators"},
                 kAtLeastZero, OFSDP_FIELD(optimizer.eps)))),
      in_training_info(for_optimizers(
          kTakesRho, number({"rho", "0.9", optimizers_with(kTakesRho) + ": decay of the averages"},
                            kZeroToOne, OFSDP_FIELD(optimizer.rho)))),
      choice("state-dtype", "of the optimizer's states: int8 has a scale for each 256 elements",
             OFSDP_FIELD(optimizer.state_dtype)),
      in_training_info(no_decay()),
      in_training_info(group()),
      number_or("off", {"ema", "off, DECAY", "a running average of the parameters: its decay"},
                kBelowOne, OFSDP_FIELD(optimizer.ema)),
      unless_idle(
          toggle({"ema-use", "on, off", "evaluate and write the average of --ema"},
                 OFSDP_FIELD(optimizer.ema_use)),
          [](const Options& o) {  // the checkpoint of another command may have an average
            const bool reads = o.command != Command::kTrain && !o.checkpoint.resume.empty();
            return o.optimizer.ema.has_value() || reads || o.command == Command::kExport;
          },
          "--ema off"),
      number_or("off", {"clip-grad-norm", "off, X", "largest global 2-norm of the gradient"},
                kAboveZero, OFSDP_FIELD(optimizer.clip_grad_norm)),
  };
}

namespace {

using Given = std::function<bool(const char*)>;

void take_defaults(UpdateOptions& update, const Given& given) {
  const OptimizerTraits traits = find_traits(update.kind);
  if (!given("lr")) update.lr = traits.lr;
  if (!given("weight-decay")) update.weight_decay = traits.weight_decay;
  if (!given("momentum")) update.momentum = traits.momentum;
  if (!given("eps")) update.eps = traits.eps;
  if (!given("rho") || (traits.takes & kTakesRho) == 0) update.rho = traits.rho;
  if (!given("betas")) update.beta1 = UpdateOptions().beta1;
  if (!given("betas")) update.beta2 = traits.beta2;
}

// A group with its own optimizer takes that optimizer's defaults and the run's other settings, but
// not rate and decay.
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

}  // namespace

void take_defaults_unless(OptimizerOptions& optimizer,
                          const std::function<bool(const char*)>& given) {
  take_defaults(optimizer, given);
  for (GroupOptions& group : optimizer.groups) complete(group, optimizer, given);
}

// Options about the learning rate schedule.

namespace {

// An entry for some schedules.
OptionEntry for_schedules(std::vector<ScheduleKind> kinds, OptionEntry entry) {
  entry.no_effect = [kinds = std::move(kinds)](const Options& o) {
    if (std::ranges::count(kinds, o.schedule.kind) > 0) return NoEffect();
    return NoEffect{"--lr-schedule " + std::string(name_of(o.schedule.kind))};
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

}  // namespace

std::vector<OptionEntry> schedule_entries() {
  using namespace entries;
  using enum ScheduleKind;
  const std::vector<ScheduleKind> stairs = {kStep, kMultistep, kExponential};
  return {
      in_training_info(
          choice("lr-schedule", "how the learning rate changes", OFSDP_FIELD(schedule.kind))),
      in_training_info(
          for_schedules({kConstant, kStep, kLinear, kCosine, kPolynomial, kMultistep, kExponential,
                         kInverseSqrt, kWsd, kCosineRestarts},
                        integer({"warmup-steps", "0", "updates on the way up to the learning rate"},
                                0, OFSDP_FIELD(schedule.warmup_steps)))),
      for_schedules(
          {kLinear, kCosine, kPolynomial, kWsd, kOneCycle},
          integer_or("auto",
                     {"total-steps", "auto (the run's), N", "updates the schedule is made for"}, 1,
                     OFSDP_FIELD(schedule.total_steps))),
      for_schedules({kLinear, kCosine, kPolynomial, kWsd, kCosineRestarts},
                    number({"min-lr-ratio", "0",
                            "linear, cosine, polynomial, wsd, cosine_restarts: the least "
                            "rate over lr"},
                           kZeroToOne, OFSDP_FIELD(schedule.min_lr_ratio))),
      for_schedules({kPolynomial}, number({"power", "1", "polynomial"}, kAtLeastZero,
                                          OFSDP_FIELD(schedule.power))),
      for_schedules({kStep},
                    integer({"step-size", "1", "step: epochs or steps between two changes"}, 1,
                            OFSDP_FIELD(schedule.step_size))),
      for_schedules(stairs,
                    number({"gamma", "0.1", "step, multistep, exponential: factor of a change"},
                           kAtLeastZero, OFSDP_FIELD(schedule.gamma))),
      for_schedules(
          stairs, choice("schedule-unit", "step, multistep, exponential: the unit of their counts",
                         OFSDP_FIELD(schedule.unit))),
      for_schedules({kMultistep}, milestones()),
      for_schedules({kWsd}, integer_or("auto",
                                       {"decay-steps", "auto (a tenth of the total), N",
                                        "wsd: updates of the decay"},
                                       1, OFSDP_FIELD(schedule.decay_steps))),
      for_schedules({kCosineRestarts}, integer_or("none",
                                                  {"restart-steps", "none, N",
                                                   "cosine_restarts: updates of the first cycle"},
                                                  1, OFSDP_FIELD(schedule.restart_steps))),
      for_schedules(
          {kCosineRestarts},
          integer({"restart-mult", "1", "cosine_restarts: length of a cycle over that of the last"},
                  1, OFSDP_FIELD(schedule.restart_mult))),
      for_schedules({kOneCycle},
                    number({"pct-start", "0.3", "onecycle: share of the updates on the way up"},
                           kZeroToOne, OFSDP_FIELD(schedule.pct_start))),
      for_schedules({kOneCycle}, number({"div-factor", "25", "onecycle: lr over the first rate"},
                                        kAboveZero, OFSDP_FIELD(schedule.div_factor))),
      for_schedules({kOneCycle},
                    number({"final-div-factor", "1e4", "onecycle: the first rate over the last"},
                           kAboveZero, OFSDP_FIELD(schedule.final_div_factor))),
  };
}

}  // namespace ofsdp::cli
