// The pages of `fsdp-run`, --help, `help` and `version`, and the reference of the options, made
// from the tables of commands and options.
#include <algorithm>

#include "kernels/base/text.h"
#include "kernels/core/device.h"
#include "kernels/cpu/products.h"
#include "runtime/cli/command_line.h"
#include "runtime/cli/commit.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

std::string command_lines() {
  std::string text;
  for (const CommandEntry& entry : command_table()) {
    if (!entry.text.empty())
      text += format_text("  fsdp-run {:<37} {}\n", entry.synopsis,
                          entry.text.substr(0, entry.text.find('\n')));
  }
  return text;
}

// A line of --help, with all values if there is room.
std::string short_line(const OptionEntry& entry) {
  constexpr size_t kColumns = 100;
  const std::string line = format_text("  --{:<25} {} [{}]", entry.name, entry.help, entry.values);
  if (line.size() <= kColumns) return line + "\n";
  return format_text("  --{:<25} {} [{}]\n", entry.name, entry.help, default_text(entry));
}

// Lines of `help all`: all values, the default first.
std::string full_lines(const OptionEntry& entry) {
  const std::string values = entry.values.empty() ? "" : " " + entry.values;
  return format_text("  --{}{}\n      {}\n", entry.name, values, entry.help);
}

bool in_page(const OptionEntry& entry, bool all) {
  return all ? entry.group != OptionGroup::kCommands : entry.common;
}

// The options by group, the common ones or all.
std::string grouped_options(bool all) {
  const std::vector<OptionEntry> table = option_table();
  std::string text;
  for (const auto& [group, title] : enum_names(OptionGroup{})) {
    std::string lines;
    for (const OptionEntry& entry : table) {
      if (entry.group != group || !in_page(entry, all)) continue;
      lines += all ? full_lines(entry) : short_line(entry);
    }
    if (!lines.empty()) text += format_text("{}{}:\n{}", all ? "\n" : "", title, lines);
  }
  return text;
}

bool is_own(const OptionEntry& entry, Command command) {
  return entry.group == OptionGroup::kCommands && contains(entry.commands, command);
}

// The options of a run that a command takes which neither trains nor plans.
std::string lines_of(Command command) {
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (entry.in_files && contains(entry.commands, command)) text += short_line(entry);
  }
  return text;
}

std::string commands_of(const OptionEntry& entry) {
  std::vector<std::string> names;
  for (const CommandEntry& command : command_table()) {
    const bool taken = entry.commands == kEveryCommand ? takes_options_of_a_run(command.command)
                                                       : contains(entry.commands, command.command);
    if (taken) names.emplace_back(name_of(command.command));
  }
  return joined(names, ", ");
}

std::string other_names(const OptionEntry& entry) {
  std::vector<std::string> names;
  for (const OptionSynonym& other : option_synonyms()) {
    if (other.option != entry.name) continue;
    names.push_back(
        format_text("--{}{}{}", other.name, other.value.empty() ? "" : " for ", other.value));
  }
  if (entry.name == "output") names.emplace_back("-o");
  if (entry.name == "nproc-per-node") names.emplace_back("-n");
  return joined(names, ", ");
}

std::string fact(std::string_view name, const std::string& value) {
  return value.empty() ? "" : format_text("  {:<12} {}\n", name, value);
}

}  // namespace

std::string overview_text() {
  return "fsdp-run trains ONNX models, sharded over ranks (processes, GPUs) as PyTorch's FSDP "
         "does.\n\n"
         "  fsdp-run demo                                    make a small model and train it\n"
         "  fsdp-run MODEL.onnx --data DATA --loss LOSS      train your model\n"
         "  fsdp-run plan MODEL.onnx ...                     memory and time, before the run\n"
         "  fsdp-run doctor MODEL.onnx ...                   likely problems, and their fixes\n\n"
         "fsdp-run --help lists the commands and the options that most people need.\n";
}

std::string help_text() {
  return "fsdp-run trains ONNX models, sharded over ranks as PyTorch's FSDP does.\n\nCommands:\n" +
         command_lines() + "\nOptions, the default first:\n" + grouped_options(/*all=*/false) +
         "\nFlags beat --config FILE (YAML: _ for -), which beats MODEL.yaml next to MODEL.onnx.\n"
         "More: fsdp-run help all, fsdp-run help OPTION, fsdp-run COMMAND --help.\n";
}

std::string full_help_text() {
  return "Commands:\n" + command_lines() +
         "\nFlags beat --config FILE (YAML: the same names with _ for -), which beats MODEL.yaml "
         "next to\nMODEL.onnx, which beats the defaults. The default value comes first.\n" +
         grouped_options(/*all=*/true) + "\nOptions of single commands: fsdp-run COMMAND --help.\n";
}

std::string command_help(const CommandEntry& command) {
  std::string text = format_text("fsdp-run {}\n    {}\n", command.synopsis, command.text);
  if (!command.more.empty()) text += format_text("\n{}\n", command.more);
  std::string own;
  for (const OptionEntry& entry : option_table()) {
    if (is_own(entry, command.command)) own += full_lines(entry);
  }
  if (!own.empty()) text += format_text("\nIts own options:\n{}", own);
  if (takes_model(command.command) || command.command == Command::kMakeTraining) {
    text += "\nOptions of a run, the default first (all: fsdp-run help all):\n" +
            grouped_options(/*all=*/false);
  } else if (command.command == Command::kExport) {
    text += "\nOptions:\n" + lines_of(command.command);
  } else if (command.command == Command::kResume) {
    text += "\nAn option of a run takes the place of that in the run's command.\n";
  } else if (command.command == Command::kPredict) {
    text += "\nOptions:\n" + lines_of(command.command);
  }
  return text;
}

std::string option_help(const OptionEntry& entry) {
  using Kind = OptionEntry::Kind;
  const bool bare = entry.kind == Kind::kBare;
  return format_text("--{}\n    {}\n\n", entry.name, entry.help) + fact("values", entry.values) +
         fact("default", default_text(entry)) +
         fact("given", entry.kind == Kind::kRepeated ? "once or several times"
                       : entry.kind == Kind::kSwitch ? "without a value (on), or with on or off"
                       : bare                        ? "without a value"
                                                     : "") +
         fact("YAML key", entry.in_files ? yaml_key(entry.name) : "none: a flag only") +
         fact("also", other_names(entry)) + fact("commands", commands_of(entry)) +
         fact("group", std::string(name_of(entry.group)));
}

Result<std::string> help_on(const std::string& topic) {
  const bool option = topic.starts_with('-');
  std::string name = topic.substr(std::min(topic.find_first_not_of('-'), topic.size()));
  std::ranges::replace(name, '_', '-');  // a YAML key
  if (name == "all") return full_help_text();
  if (topic == "-o") name = "output";
  if (topic == "-n") name = "nproc-per-node";
  const auto command = option ? std::nullopt : value_named<Command>(name);
  const std::vector<OptionEntry> table = option_table();
  const OptionSynonym* const other = find_synonym(name);
  const OptionEntry* const entry = find_entry(table, other ? std::string(other->option) : name);
  for (const CommandEntry& row : command_table()) {
    if (!command || row.command != *command) continue;
    const std::string more = entry == nullptr ? "" : "\nThe option: fsdp-run help --" + name + "\n";
    return command_help(row) + more;
  }
  if (entry != nullptr) return option_help(*entry);
  std::vector<std::string> names = names_of<Command>();
  names.emplace_back("all");
  for (const OptionEntry& row : table) names.push_back(row.name);
  return input_error("fsdp-run help: expected all, a command or an option, found '{}'{}", topic,
                     name_hint(name, names));
}

namespace {

// A cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '<') out += '\\';
    out += c;
  }
  return out;
}

std::string reference_row(const OptionEntry& entry) {
  const std::string key = entry.in_files ? "`" + yaml_key(entry.name) + "`" : "";
  const bool more = !entry.values.empty() && entry.values != default_text(entry);
  const std::string values = more ? " Values: " + cell(entry.values) + "." : "";
  return format_text("| `--{}` | {} | {} | {}.{} |\n", entry.name, cell(default_text(entry)), key,
                     cell(entry.help), values);
}

}  // namespace

std::string options_reference() {
  const std::vector<OptionEntry> table = option_table();
  std::string text =
      "# Options\n\n"
      "`fsdp-run man markdown` prints this page from the table of options. `fsdp-run help OPTION` "
      "prints\none row of it. Flags beat `--config FILE`, which beats `MODEL.yaml` next to "
      "`MODEL.onnx`.\n";
  for (const auto& [group, title] : enum_names(OptionGroup{})) {
    text += format_text(
        "\n## {}\n\n| Option | Default | YAML key | Meaning |\n| --- | --- | --- | "
        "--- |\n",
        title);
    for (const OptionEntry& entry : table) {
      if (entry.group == group) text += reference_row(entry);
    }
  }
  text +=
      "\n## Other names\n\n| Option | Means |\n| --- | --- |\n| `-o` | `--output` |\n| `-n` | "
      "`--nproc-per-node` |\n| `--dry-run` | `fsdp-run plan` |\n";
  for (const OptionSynonym& other : option_synonyms()) {
    text += format_text("| `--{}` | `--{}{}{}` |\n", other.name, other.option,
                        other.value.empty() ? "" : " ", other.value);
  }
  return text;
}

namespace {

std::string cuda_text() {
  const Result<int> count = count_devices();
  if (!count.ok()) {
    const std::string& why = count.error().message();
    return why.starts_with("this build has no CUDA") ? "no" : "no: " + why;
  }
  return "yes, " + plural(*count, "GPU") + " here";
}

std::string processor_text() {
#if defined(__x86_64__)
  std::vector<std::string> features;
  const auto add = [&](bool has, const char* name) {
    if (has) features.emplace_back(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("f16c"), "f16c");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  return features.empty() ? "x86-64" : "x86-64 with " + joined(features, ", ");
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

}  // namespace

std::string version_text(const char* version) {
  const std::string onednn = onednn::version();
  return format_text("fsdp-run {}\n", version) + fact("commit", kCommit) +
         fact("CUDA", cuda_text()) + fact("oneDNN", onednn.empty() ? "no" : onednn) +
         fact("processor", processor_text());
}

}  // namespace ofsdp::cli
