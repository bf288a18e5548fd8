#include "runtime/cli/options/option_table.h"

#include <algorithm>

#include "kernels/core/optimizer.h"

namespace ofsdp::cli {

namespace {

// One of a few words.
template <typename Field>
OptionEntry word(OptionEntry entry, std::vector<std::string> words, Field field) {
  entry.values = joined(words, ", ");
  return entries::parsed(
      std::move(entry), "one of " + joined(words, ", "), field,
      [=](const std::string& text) {
        const bool known = std::ranges::count(words, text) > 0;
        return known ? std::optional(text) : std::nullopt;
      },
      yaml_quoted);
}

// Parses seconds: "90s", "5m" or "90".
std::optional<double> parse_time(const std::string& text) {
  const char unit = text.empty() ? ' ' : text.back();
  const bool named = unit == 's' || unit == 'm';
  const auto number = parse_number(named ? text.substr(0, text.size() - 1) : text);
  if (!number || !(*number > 0)) return std::nullopt;
  return *number * (unit == 'm' ? 60 : 1);
}

// The name of a file, unchecked.
template <typename Field>
OptionEntry file(OptionEntry entry, Field field) {
  return entries::parsed(
      std::move(entry), "", field, [](const std::string& text) { return std::optional(text); },
      yaml_quoted);
}

// Flags that no file may contain.
std::vector<OptionEntry> command_line_entries() {
  using namespace entries;
  const Commands plan = only(Command::kPlan), exports = only(Command::kExport),
                 doctor = only(Command::kDoctor), check = only(Command::kCheck);
  const auto positive = [](const std::string& text) { return parse_integer(text, 1); };
  const auto shown = [](const auto& world) { return std::to_string(world.value_or(0)); };
  return {
      bare({"help", "", "print commands and options"}, kEveryCommand, OFSDP_FIELD(help)),
      bare({"version", "", "print the version"}, kEveryCommand, OFSDP_FIELD(version)),
      bare({"json", "", "plan, ops, check: the same as JSON"}, plan | only(Command::kOps) | check,
           OFSDP_FIELD(json)),
      flag(plan,
           parsed({"world", "the ranks that are here; N", "plan: ranks that may be elsewhere"},
                  "a whole number of at least 1", OFSDP_FIELD(report.world), positive, shown)),
      flag(plan, file({"topology", "this machine; FILE", "plan: hosts and links as the YAML says"},
                      OFSDP_FIELD(report.topology))),
      flag(plan, file({"html", "none, FILE", "plan: also a page for a browser"},
                      OFSDP_FIELD(report.html))),
      bare({"operations", "", "plan: what rank 0 runs, line by line"}, plan,
           OFSDP_FIELD(report.operations)),
      bare({"explain", "", "plan: the kernel of each node, and why not another"}, plan,
           OFSDP_FIELD(report.explain)),
      bare({"find-lr", "", "doctor: the loss at learning rates from small to large"}, doctor,
           OFSDP_FIELD(doctor.find_lr)),
      flag(doctor,
           file({"picture", "none, FILE.svg", "doctor: the curve of --find-lr as a picture"},
                OFSDP_FIELD(doctor.picture))),
      flag(check, parsed({"directions", "4", "check: derivatives of each parameter"},
                         "a whole number of at least 1", OFSDP_FIELD(check.directions), positive,
                         [](int64_t count) { return std::to_string(count); })),
      flag(check, parsed({"limit", "60s", "check: the time of the command; 90s, 5m"},
                         "a time such as 60s or 5m", OFSDP_FIELD(check.limit_seconds), parse_time,
                         [](double seconds) { return format_text("{:g}s", seconds); })),
      bare({"inference", "", "export: training switches off"}, exports, OFSDP_FIELD(inference)),
      bare({"verify", "", "export: compare the file's outputs with those of the checkpoint"},
           exports, OFSDP_FIELD(verify)),
      flag(exports, word({"format", "", "export: the kind of file"}, {"onnx", "safetensors"},
                         OFSDP_FIELD(format))),
      flag(only(Command::kMakeTraining),
           word({"form", "", "make-training: what is added to the model"},
                {"training_info", "graph"}, OFSDP_FIELD(form))),
      flag(only(Command::kDemo), file({"output-dir", "onnx-fsdp-demo, DIR", "demo: its folder"},
                                      OFSDP_FIELD(demo_folder))),
      flag(kEveryCommand,
           file({"config", "FILE", "a YAML file with options"}, OFSDP_FIELD(config))),
  };
}

// Indents the mapping under `data:`.
std::string indented(const std::string& yaml) {
  std::string text = "\n  ";
  for (const char c : yaml) {
    text += c;
    if (c == '\n') text += "  ";
  }
  return text;
}

}  // namespace

std::vector<OptionEntry> option_table() {
  std::vector<OptionEntry> table;
  for (const auto& part :
       {sharding_entries(), loss_entries(), trained_entries(), optimizer_entries(),
        schedule_entries(), edit_entries(), run_entries(), command_line_entries()}) {
    table.insert(table.end(), part.begin(), part.end());
  }
  return table;
}

const OptionEntry* find_entry(const std::vector<OptionEntry>& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &OptionEntry::name);
  return found == table.end() ? nullptr : &*found;
}

const OptionEntry* find_key(const std::vector<OptionEntry>& table, std::string_view name) {
  const OptionEntry* entry = find_entry(table, name);
  return entry != nullptr && entry->in_files ? entry : nullptr;
}

std::vector<std::string> entry_names(const std::vector<OptionEntry>& table) {
  std::vector<std::string> names;
  for (const OptionEntry& entry : table) {
    if (entry.in_files) names.push_back(entry.name);
  }
  return names;
}

std::string yaml_key(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string describe(const Options& options, const std::optional<BatchSizes>& sizes) {
  const bool sliced = sizes && sizes->slices > 0;  // slices of a given size, in any number a rank
  // computed from the other two
  const std::string_view follows = sliced ? "grad-accum" : "batch-size";
  Options shown = options;
  if (sizes) {
    shown.batch = {.batch_size = {sizes->batch_size},
                   .grad_accum = {sizes->grad_accum},
                   .global_batch_size = {sizes->global_batch_size}};
  }
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (!entry.in_files || !no_effect(options, entry.name).beside.empty()) continue;
    if (sizes && entry.name == follows) continue;
    const bool mapping = entry.name == "data" && options.run.data.kind == DataChoice::Kind::kInline;
    std::string value = mapping ? indented(options.run.data.yaml) : " " + entry.show(shown);
    if (sizes && entry.name == "global-batch-size") {
      value += format_text("  # {}: {}", sliced ? "grad_accum" : "batch_size",
                           sliced ? sizes->grad_accum : sizes->batch_size);
    }
    text += yaml_key(entry.name) + ":" + value + "\n";
  }
  return text;
}

bool is_of_a_run(const OptionEntry& entry) {
  return entry.in_files || entry.commands == kEveryCommand;
}

std::string help_of_options() {
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (!is_of_a_run(entry)) continue;  // printed with its command
    text += format_text("  --{:<25} {}\n  {:27} {}\n", entry.name, entry.values, "", entry.help);
  }
  return text;
}

// Options with a default or effect that depends on another option.

namespace {

template <typename E>
bool any_of(E value, std::initializer_list<E> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// The optimizer of a plug-in takes every setting.
OptimizerTraits find_traits(OptimizerKind kind) {
  if (kind == OptimizerKind::kPlugin) return {};
  return find_optimizer(choice_name(kind))->traits;
}

bool kind_uses(OptimizerKind kind, std::string_view name) {
  constexpr std::pair<std::string_view, OptimizerTakes> kSettings[] = {
      {"momentum", kTakesMomentum}, {"nesterov", kTakesNesterov}, {"betas", kTakesBetas},
      {"eps", kTakesEps},           {"rho", kTakesRho},
  };
  for (const auto& [setting, bit] : kSettings) {
    if (name == setting) return (find_traits(kind).takes & bit) != 0;
  }
  if (name == "muon-adjust") return kind == OptimizerKind::kMuon;
  return true;
}

// An optimizer of a group counts too.
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
  const OptimizerTraits traits = find_traits(update.kind);
  if (!given("lr")) update.lr = traits.lr;
  if (!given("weight-decay")) update.weight_decay = traits.weight_decay;
  if (!given("momentum")) update.momentum = traits.momentum;
  if (!given("eps")) update.eps = traits.eps;
  if (!given("rho") || (traits.takes & kTakesRho) == 0) update.rho = traits.rho;
  if (!given("betas")) update.beta1 = UpdateOptions().beta1;
  if (!given("betas")) update.beta2 = traits.beta2;
}

// A group with its own optimizer takes the defaults of that optimizer and other settings of the
// run, but not rate and decay.
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
      // the checkpoint may have an average
      options.command == Command::kEval && !options.checkpoint.resume.empty();
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
