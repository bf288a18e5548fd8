#include "runtime/cli/options/option_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace ofsdp::cli {

namespace {

struct ByteUnit {
  std::string_view name;
  int64_t bytes;
};

// Binary units first and largest first, since show_bytes takes the first that divides.
constexpr std::array<ByteUnit, 9> kByteUnits = {{{"TiB", int64_t{1} << 40},
                                                 {"GiB", int64_t{1} << 30},
                                                 {"MiB", int64_t{1} << 20},
                                                 {"KiB", int64_t{1} << 10},
                                                 {"TB", 1'000'000'000'000},
                                                 {"GB", 1'000'000'000},
                                                 {"MB", 1'000'000},
                                                 {"KB", 1'000},
                                                 {"B", 1}}};

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// A word from a short list.
template <typename Field>
OptionEntry word(OptionEntry entry, std::vector<std::string> words, Field field) {
  entry.values = joined(words, ", ");
  return entries::parsed(
      std::move(entry), "one of " + joined(words, ", "), field,
      [=](const std::string& text) {
        const std::string name = matched_name(text, words);
        const bool known = std::ranges::count(words, name) > 0;
        return known ? std::optional(name) : std::nullopt;
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

// A file name, unchecked.
template <typename Field>
OptionEntry file(OptionEntry entry, Field field) {
  return entries::parsed(
      std::move(entry), "", field, [](const std::string& text) { return std::optional(text); },
      yaml_quoted);
}

// Keeps the text too, which messages and commands repeat.
OptionEntry fit() {
  OptionEntry entry{"fit", "none, bytes such as 24GiB",
                    "plan: what to change so that a rank needs at most so much"};
  entry.set = [](Options& o, const std::string& text) {
    o.report.fit = parse_bytes(text);
    o.report.fit_text = text;
    return fine_or(o.report.fit.has_value(), "bytes such as 24GiB");
  };
  entry.show = [](const Options& o) { return o.report.fit ? o.report.fit_text : "none"; };
  return entry;
}

OptionEntry compare() {
  OptionEntry entry{"compare", "none, A.yaml B.yaml",
                    "plan: two files, each as --config has it, side by side"};
  entry.kind = OptionEntry::Kind::kPair;
  entry.set = [](Options& o, const std::string& text) {
    const size_t end = text.find('\0');
    o.report.compare = {text.substr(0, end), text.substr(end + 1)};
    return Verdict{};
  };
  entry.show = [](const Options& o) {
    return o.report.compare.empty() ? "none" : yaml_list(o.report.compare);
  };
  return entry;
}

// Flags that no file may contain.
std::vector<OptionEntry> command_line_entries() {
  using namespace entries;
  const Commands plan = only(Command::kPlan), exports = only(Command::kExport),
                 doctor = only(Command::kDoctor), check = only(Command::kCheck);
  const auto positive = [](const std::string& text) { return parse_integer(text, 1); };
  const auto shown = [](const auto& world) { return std::to_string(world.value_or(0)); };
  return {
      bare({"json", "",
            "train, eval, plan, data, doctor, check, ops: the result as one JSON object"},
           only(Command::kTrain) | only(Command::kEval) | plan | only(Command::kData) | doctor |
               check | only(Command::kOps),
           OFSDP_FIELD(json)),
      flag(plan,
           parsed({"world", "the ranks that are here; N", "plan: ranks that may be elsewhere"},
                  "a whole number of at least 1", OFSDP_FIELD(report.world), positive, shown)),
      flag(plan, file({"topology", "this machine; FILE", "plan: hosts and links as the YAML says"},
                      OFSDP_FIELD(report.topology))),
      flag(plan | only(Command::kData),
           file({"html", "none, FILE", "plan, data: also a page for a browser"},
                OFSDP_FIELD(report.html))),
      bare({"operations", "", "plan: the operations of rank 0, line by line"}, plan,
           OFSDP_FIELD(report.operations)),
      bare({"schedule", "", "plan: also the steps of each program, with their times"}, plan,
           OFSDP_FIELD(report.schedule)),
      bare({"explain", "", "plan: the kernel of each node, and why not another"}, plan,
           OFSDP_FIELD(report.explain)),
      flag(plan, fit()),
      flag(plan, compare()),
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
      flag(exports, word({"format", "", "export: the kind of file; none: by its name"},
                         {"onnx", "safetensors"}, OFSDP_FIELD(format))),
      flag(only(Command::kMakeTraining),
           word({"form", "", "make-training: the form of the training in the model"},
                {"training_info", "graph"}, OFSDP_FIELD(form))),
      flag(only(Command::kDemo), file({"output-dir", "onnx-fsdp-demo, DIR", "demo: its folder"},
                                      OFSDP_FIELD(demo_folder))),
  };
}

// Flags that every command takes.
std::vector<OptionEntry> general_entries() {
  using namespace entries;
  return {
      flag(kEveryCommand,
           file({"config", "FILE", "a YAML file with options"}, OFSDP_FIELD(config))),
      bare({"help", "", "print the command's options"}, kEveryCommand, OFSDP_FIELD(help)),
      bare({"version", "", "print the version"}, kEveryCommand, OFSDP_FIELD(version)),
  };
}

// The options that `--help` shows, which has at most 60 lines.
constexpr std::string_view kCommon[] = {"data",
                                        "eval-data",
                                        "loss",
                                        "freeze",
                                        "lora",
                                        "epochs",
                                        "steps",
                                        "batch-size",
                                        "grad-accum",
                                        "optimizer",
                                        "lr",
                                        "weight-decay",
                                        "lr-schedule",
                                        "warmup-steps",
                                        "clip-grad-norm",
                                        "strategy",
                                        "param-dtype",
                                        "activation-checkpointing",
                                        "memory-limit",
                                        "nproc-per-node",
                                        "device",
                                        "output",
                                        "checkpoint-dir",
                                        "resume",
                                        "config"};

// The options that commands take which neither train nor plan; train, plan, eval, doctor, check,
// config and make-training take every option of a run.
struct CommandOptions {
  Command command;
  std::vector<std::string_view> names;
};

const std::vector<CommandOptions>& narrow_commands() {
  static const std::vector<CommandOptions> kNarrow = {
      {Command::kPredict,
       {"data",           "eval-data",    "loss",      "prediction",     "batch-axis",
        "free-batch",     "sample-shape", "input",     "nhwc-weights",   "batch-size",
        "loader-threads", "threads",      "output",    "plugin",         "plugin-override",
        "nproc-per-node", "device",       "resume",    "checkpoint-dir", "ema-use",
        "seed",           "lora",         "lora-rank", "lora-alpha",     "lora-dropout",
        "lora-from",      "replace-head", "add-head",  "untie"}},
      {Command::kExport, {"output", "adapter", "ema-use", "plugin", "plugin-override", "threads"}},
      {Command::kData,
       {"loss", "labels", "prediction", "batch-axis", "sample-shape", "input", "loader-threads",
        "threads", "plugin", "plugin-override"}},
      {Command::kPrepare,
       {"loss", "labels", "prediction", "batch-axis", "sample-shape", "input", "loader-threads",
        "threads", "output", "plugin", "plugin-override"}},
      {Command::kOps, {"plugin", "plugin-override"}},
      {Command::kCheckPlugin, {}},
  };
  return kNarrow;
}

constexpr Commands without(Commands set, Command command) { return set & ~only(command); }

// Returns the commands in which an option of a run has an effect.
Commands commands_of_run_option(std::string_view name) {
  using enum Command;
  Commands set = kEveryCommand;
  for (const Command other : {kDemo, kCompletion, kMan, kHelp, kVersion}) {
    set = without(set, other);
  }
  for (const CommandOptions& narrow : narrow_commands()) {
    if (std::ranges::count(narrow.names, name) == 0) set = without(set, narrow.command);
  }
  // The file of make-training has neither values of a run nor rows.
  const bool of_runs = name == "resume" || name == "pack";
  return of_runs ? without(set, kMakeTraining) : set;
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

std::optional<int64_t> parse_integer(std::string_view text, int64_t least) {
  const std::optional<int64_t> value = parse_whole<int64_t>(text);
  return value && *value >= least ? value : std::nullopt;
}

std::optional<uint64_t> parse_unsigned(std::string_view text) {
  return parse_whole<uint64_t>(text);
}

std::optional<double> parse_number(std::string_view text) {
  const std::optional<double> value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string lowered(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return low;
}

std::optional<bool> parse_switch(std::string_view text) {
  const std::string word = lowered(text);
  if (word == "on" || word == "true" || word == "yes") return true;
  if (word == "off" || word == "false" || word == "no") return false;
  return std::nullopt;
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  int64_t scale = 1;
  for (const ByteUnit& unit : kByteUnits) {
    if (!text.ends_with(unit.name)) continue;
    text = trimmed(text.substr(0, text.size() - unit.name.size()));
    scale = unit.bytes;
    break;
  }
  const std::optional<double> count = parse_number(text);
  constexpr double kMax = 9e18;
  if (!count || *count <= 0 || *count * static_cast<double>(scale) > kMax) return std::nullopt;
  const auto bytes = static_cast<int64_t>(*count * static_cast<double>(scale));
  return bytes > 0 ? std::optional(bytes) : std::nullopt;
}

std::optional<Interval> parse_interval(std::string_view text) {
  for (const auto& [unit, name] : enum_names(StepUnit{})) {
    if (!text.ends_with(name)) continue;
    const auto count = parse_integer(text.substr(0, text.size() - name.size()), 1);
    return count ? std::optional(Interval{*count, unit}) : std::nullopt;
  }
  return std::nullopt;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t comma = 0; comma != std::string_view::npos; begin = comma + 1) {
    comma = text.find(',', begin);
    parts.emplace_back(trimmed(text.substr(begin, comma - begin)));
  }
  return parts;
}

std::string show_number(double value) { return format_text("{}", value); }

std::string show_bytes(int64_t bytes) {
  for (const ByteUnit& unit : kByteUnits) {
    if (bytes % unit.bytes == 0) return format_text("{}{}", bytes / unit.bytes, unit.name);
  }
  return format_text("{}B", bytes);
}

std::string show_interval(const Interval& interval) {
  return format_text("{}{}", interval.count, name_of(interval.unit));
}

// yaml-cpp's Emitter would escape tabs and line ends differently.
std::string yaml_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += format_text("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string yaml_list(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (const std::string& text : texts) quoted.push_back(yaml_quoted(text));
  return "[" + joined(quoted, ", ") + "]";
}

std::vector<OptionEntry> option_table() {
  using enum OptionGroup;
  std::vector<OptionEntry> table;
  for (const auto& [group, part] :
       std::initializer_list<std::pair<OptionGroup, std::vector<OptionEntry>>>{
           {kMemory, sharding_entries()},
           {kRanks, launch_entries()},
           {kModel, loss_entries()},
           {kModel, trained_entries()},
           {kOptimizer, optimizer_entries()},
           {kOptimizer, schedule_entries()},
           {kModel, edit_entries()},
           {kLength, length_entries()},
           {kModel, data_entries()},
           {kFiles, run_entries()},
           {kCommands, command_line_entries()},
           {kFiles, general_entries()}}) {
    for (const OptionEntry& entry : part) {
      table.push_back(entry);
      table.back().group = group;
      table.back().common = std::ranges::count(kCommon, entry.name) > 0;
      if (entry.in_files && entry.commands == kEveryCommand) {
        table.back().commands = commands_of_run_option(entry.name);
      }
    }
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
  const bool sliced = sizes && sizes->slices > 0;  // slices with a given size, in any number a rank
  // computed from the other two
  const std::string_view follows = sliced ? "grad-accum" : "batch-size";
  Options shown = options;
  if (sizes) {
    shown.batch = {.batch_size = {sizes->batch_size},
                   .grad_accum = {sizes->grad_accum},
                   .global_batch_size = {sizes->global_batch_size},
                   .weights = options.batch.weights};
  }
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (!entry.in_files || !entry.no_effect(options).beside.empty()) continue;
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

std::string default_text(const OptionEntry& entry) {
  if (entry.kind == OptionEntry::Kind::kBare) return "off";
  std::string shown = entry.show(Options());
  if (shown == "~" || shown == "\"\"") {
    const size_t end = std::min(entry.values.find_first_of(",;("), entry.values.size());
    shown = entry.in_files ? entry.values.substr(0, end) : "none";
  }
  if (shown == "[]") shown = "none";
  std::erase_if(shown, [](char c) { return c == '"' || c == '[' || c == ']'; });  // YAML's
  while (!shown.empty() && shown.back() == ' ') shown.pop_back();
  return shown;
}

}  // namespace ofsdp::cli
