// The options about loss, trained parameters, optimizer and schedule.
#include <algorithm>

#include "kernels/core/optimizer.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

constexpr std::string_view kOutputPrefix = "output:";
constexpr std::string_view kPluginPrefix = "plugin:";
constexpr std::string_view kContrastivePrefix = "contrastive:";

// A:B or A:B:TEMPERATURE.
Verdict set_contrastive(LossOptions& loss, const std::string& text) {
  constexpr const char* kExpected = "contrastive:A:B or contrastive:A:B:TEMPERATURE, above 0";
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  std::optional<double> temperature = LossOptions().temperature;
  if (parts.size() == 3) temperature = parse_number(parts[2]);
  const bool fine = (parts.size() == 2 || parts.size() == 3) && !parts[0].empty() &&
                    !parts[1].empty() && temperature && *temperature > 0;
  if (!fine) return fine_or(false, kExpected);
  loss.kind = LossKind::kContrastive;
  loss.output = parts[0];
  loss.other = parts[1];
  loss.temperature = *temperature;
  return fine_or(true, kExpected);
}

std::string contrastive_text(const LossOptions& loss) {
  return format_text("{}{}:{}:{}", kContrastivePrefix, loss.output, loss.other,
                     show_number(loss.temperature));
}

constexpr size_t kMostNamed = 200;  // so that the names of all fit into a row of the metrics

bool is_named(const std::string& text) {
  return text.find(':') != std::string::npos && !text.starts_with(kOutputPrefix) &&
         !text.starts_with(kPluginPrefix) && !text.starts_with(kContrastivePrefix);
}

// KIND:PREDICTION:LABELS[*WEIGHT]. Names of outputs may hold colons, those of columns may not.
Verdict read_named(const std::string& text, NamedLoss& made) {
  made.said = text;
  const bool printable = std::ranges::all_of(text, [](unsigned char c) { return c >= ' '; });
  if (text.size() > kMostNamed || !printable) {
    return fine_or(false, format_text("at most {} printable bytes", kMostNamed));
  }
  std::string names = text;
  if (const size_t star = text.rfind('*'); star != std::string::npos) {
    const auto weight = parse_number(text.substr(star + 1));
    if (!weight) return fine_or(false, "KIND:PREDICTION:LABELS*WEIGHT with a number");
    made.weight = *weight;
    names.resize(star);
  }
  const size_t first = names.find(':'), last = names.rfind(':');
  std::vector<std::string> kinds = names_of<LossKind>();
  std::erase(kinds, name_of(LossKind::kAuto));
  std::erase(kinds, name_of(LossKind::kContrastive));
  const Verdict verdict = set_choice(names.substr(0, first), made.kind, kinds);
  if (!verdict.fine) {
    return {false, "KIND:PREDICTION:LABELS with a kind of " + joined(kinds, ", "), verdict.hint};
  }
  made.labels = names.substr(last + 1);
  if (first == last || last == first + 1 || made.labels.empty()) {
    return fine_or(false, "KIND:PREDICTION:LABELS");
  }
  made.prediction = names.substr(first + 1, last - first - 1);
  return {};
}

Verdict add_named(LossOptions& loss, const std::string& text) {
  NamedLoss made;
  Verdict verdict = read_named(text, made);
  if (!verdict.fine) return verdict;
  if (loss.named.size() == kMostLossTerms / 2) {
    return fine_or(false, format_text("at most {} losses", kMostLossTerms / 2));
  }
  if (loss.named.empty()) {
    loss.kind = made.kind;
    loss.prediction = made.prediction;
    loss.labels = made.labels;
  }
  loss.named.push_back(std::move(made));
  return {};
}

OptionEntry loss() {
  OptionEntry entry{.name = "loss",
                    .values =
                        "auto, cross_entropy, nll, mse, bce_with_logits, output:NAME, plugin:NAME, "
                        "contrastive:A:B[:TEMPERATURE], KIND:PREDICTION:LABELS[*WEIGHT]; repeated",
                    .help = "auto: the graph's only scalar float output; the sum of several",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    const bool alone = o.loss.named.empty();
    if (is_named(text) ? alone && o.loss.kind != LossKind::kAuto : !alone) {
      return fine_or(false, "each of several losses as KIND:PREDICTION:LABELS[*WEIGHT]");
    }
    if (is_named(text)) return add_named(o.loss, text);
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
    if (text.starts_with(kContrastivePrefix)) {
      return set_contrastive(o.loss, text.substr(kContrastivePrefix.size()));
    }
    Verdict verdict = set_choice(text, o.loss.kind, names_of<LossKind>());
    if (!verdict.fine) verdict.expected += ", output:NAME, plugin:NAME or contrastive:A:B";
    return verdict;
  };
  entry.show = [](const Options& o) {
    if (!o.loss.named.empty()) {
      std::vector<std::string> all;
      for (const NamedLoss& one : o.loss.named) all.push_back(one.said);
      return yaml_list(all);
    }
    if (o.loss.kind == LossKind::kOutput) return yaml_quoted("output:" + o.loss.output);
    if (o.loss.kind == LossKind::kOperator) return yaml_quoted("plugin:" + o.loss.output);
    if (o.loss.kind == LossKind::kContrastive) return yaml_quoted(contrastive_text(o.loss));
    return std::string(name_of(o.loss.kind));
  };
  entry.clear = [](Options& o) {
    const LossOptions none;
    o.loss.kind = none.kind;
    o.loss.output.clear();
    if (!o.loss.named.empty()) o.loss.prediction = o.loss.labels = "";
    o.loss.named.clear();
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

// "3e-4", or "0.1x" of the run's rate.
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
  group.kind = choice_named<OptimizerKind>(text);
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
            .hint = did_you_mean(value, names_of<OptimizerKind>())};
  }
  return fine_or(false, "lr=, weight_decay= or optimizer= after PATTERN:");
}

// Finds the first key: after the last ':' before the first '=' that follows a key. Names may
// hold either.
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

}  // namespace

void take_defaults_unless(OptimizerOptions& optimizer,
                          const std::function<bool(const char*)>& given) {
  take_defaults(optimizer, given);
  for (GroupOptions& group : optimizer.groups) complete(group, optimizer, given);
}

NoEffect no_effect(const Options& options, std::string_view name) {
  if (!optimizer_uses(options.optimizer, name)) {
    return {"--optimizer " + optimizer().show(options), true};
  }
  if (name == "ema-use" && !options.optimizer.ema) return {"--ema off"};
  if (!schedule_uses(options.schedule.kind, name)) {
    return {"--lr-schedule " + std::string(name_of(options.schedule.kind))};
  }
  if (!loss_uses(options.loss, name)) {
    const auto& named = options.loss.named;
    return {"--loss " + (named.empty() ? loss().show(options) : named[0].said)};
  }
  if (name.starts_with("distill-") && options.teacher.path.empty()) return {"--teacher none"};
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
      path({"teacher", "none, FILE.onnx", "a model whose outputs the trained one follows too"},
           OFSDP_FIELD(teacher.path)),
      number({"distill-weight", "0.5", "share of the divergence from the teacher in the loss"},
             kZeroToOne, OFSDP_FIELD(teacher.weight)),
      number({"distill-temperature", "2", "divides the logits of both"}, kAboveZero,
             OFSDP_FIELD(teacher.temperature)),
      repeated("", {"freeze", "NAME or glob, repeated", "initializers that stay as they are"},
               OFSDP_FIELD(freeze)),
      repeated("", {"train", "NAME or glob, repeated", "the only initializers that are trained"},
               OFSDP_FIELD(train)),
      toggle({"sync-batch-norm", "off, on",
              "BatchNormalization takes its statistics from the rows of all ranks"},
             OFSDP_FIELD(sync_batch_norm)),
      choice("qat-scales", "scales of quantized values stay, or are trained (LSQ)",
             OFSDP_FIELD(qat_scales)),
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
      number(
          {"weight-decay", "PyTorch's (adamw 0.01, muon 0.1, others 0)", "decay of the parameters"},
          kAtLeastZero, OFSDP_FIELD(optimizer.weight_decay)),
      number({"momentum", defaults_of(&OptimizerTraits::momentum, kTakesMomentum),
              optimizers_with(kTakesMomentum)},
             kAtLeastZero, OFSDP_FIELD(optimizer.momentum)),
      choice("muon-adjust", "muon: how a rate follows the shape of a matrix",
             OFSDP_FIELD(optimizer.muon_adjust)),
      toggle({"nesterov", "off, on", "sgd with momentum"}, OFSDP_FIELD(optimizer.nesterov)),
      betas(),
      number({"eps", defaults_of(&OptimizerTraits::eps, kTakesEps), "added to denominators"},
             kAtLeastZero, OFSDP_FIELD(optimizer.eps)),
      number({"rho", "0.9", optimizers_with(kTakesRho) + ": decay of the averages"}, kZeroToOne,
             OFSDP_FIELD(optimizer.rho)),
      choice("state-dtype", "of the optimizer's states: int8 has a scale for each 256 elements",
             OFSDP_FIELD(optimizer.state_dtype)),
      no_decay(),
      group(),
      parsed_or(
          "off", {"ema", "off, DECAY", "a running average of the parameters: its decay"},
          std::string(kZeroToOne.text), OFSDP_FIELD(optimizer.ema),
          [](const std::string& text) {
            const auto decay = parse_number(text);
            return decay && kZeroToOne.accepts(*decay) ? decay : std::nullopt;
          },
          show_number),
      toggle({"ema-use", "on, off", "evaluate and write the average of --ema"},
             OFSDP_FIELD(optimizer.ema_use)),
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
