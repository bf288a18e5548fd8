#include "runtime/cli/command_line.h"

#include <array>
#include <cstdlib>
#include <filesystem>

#include "runtime/cli/config/ort_settings.h"
#include "runtime/cli/config/yaml_config.h"
#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {
namespace {

struct CommandEntry {
  std::string_view name;
  Command command;
  std::string_view operand;  // what must follow; empty: nothing
};

constexpr std::array<CommandEntry, 8> kCommands = {
    {{"train", Command::kTrain, "MODEL.onnx"},
     {"plan", Command::kPlan, "MODEL.onnx"},
     {"eval", Command::kEval, "MODEL.onnx"},
     {"export", Command::kExport, "CKPT_DIR"},
     {"config", Command::kConfig, ""},
     {"ops", Command::kOps, ""},
     {"check-plugin", Command::kCheckPlugin, "LIB.so"},
     {"make-training", Command::kMakeTraining, "MODEL.onnx"}}};

struct Flag {
  std::string name;  // without the dashes
  std::string text;
};

// What stands on the command line, before it means anything.
struct Words {
  bool help = false;
  std::vector<std::string> operands;
  std::vector<Flag> flags;
  std::optional<std::string> config;
  bool json = false;
  bool operations = false;
  bool inference = false;
  bool verify = false;
  std::optional<std::string> format, form;
  std::optional<std::string> world, topology, html;
};

class Scanner {
 public:
  Scanner(const std::vector<std::string>& arguments, const std::vector<OptionEntry>& table)
      : arguments_(arguments), table_(table) {}

  Result<Words> scan() {
    bool options_end = false;
    while (next_ < arguments_.size()) {
      const std::string& word = arguments_[next_++];
      if (options_end || !word.starts_with('-') || word == "-") {
        words_.operands.push_back(word);
      } else if (word == "--") {
        options_end = true;
      } else {
        OFSDP_RETURN_IF_ERROR(scan_option(word));
      }
    }
    return std::move(words_);
  }

 private:
  Status scan_option(const std::string& word) {
    if (word == "--help" || word == "-h") return on(words_.help);
    if (word == "--json") return on(words_.json);
    if (word == "--operations") return on(words_.operations);
    if (word == "--inference") return on(words_.inference);
    if (word == "--verify") return on(words_.verify);
    const size_t equals = word.find('=');
    const std::string flag = word == "-o" ? "--output" : word.substr(0, equals);
    std::optional<std::string> text;
    if (equals != std::string::npos) text = word.substr(equals + 1);
    const std::string name = flag.starts_with("--") ? flag.substr(2) : std::string();
    if (name == "config") return take_value(flag, text, words_.config.emplace());
    if (name == "format") return take_value(flag, text, words_.format.emplace());
    if (name == "form") return take_value(flag, text, words_.form.emplace());
    if (name == "world") return take_value(flag, text, words_.world.emplace());
    if (name == "topology") return take_value(flag, text, words_.topology.emplace());
    if (name == "html") return take_value(flag, text, words_.html.emplace());
    const OptionEntry* entry = find_entry(table_, name == "no-shuffle" ? "shuffle" : name);
    if (entry == nullptr) return unknown_option(flag);
    if (!text && entry->kind == OptionEntry::Kind::kSwitch) text = switch_text();
    words_.flags.push_back({name, {}});
    return take_value(flag, text, words_.flags.back().text);
  }

  static Status on(bool& value) {
    value = true;
    return ok_status();
  }

  // A switch stands alone unless on or off follows.
  std::string switch_text() {
    const bool follows = next_ < arguments_.size() && parse_switch(arguments_[next_]);
    return follows ? arguments_[next_++] : "on";
  }

  // Negative numbers are values, other words with a dash are options.
  static bool is_option(const std::string& word) {
    return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9') &&
           word[1] != '.';
  }

  Status take_value(const std::string& flag, const std::optional<std::string>& text,
                    std::string& value) {
    if (text) {
      value = *text;
      return ok_status();
    }
    const bool missing = next_ == arguments_.size();
    if (missing || is_option(arguments_[next_])) {
      return input_error("{}: expected a value, found {}", flag,
                         missing ? std::string("nothing") : "'" + arguments_[next_] + "'");
    }
    value = arguments_[next_++];
    return ok_status();
  }

  Status unknown_option(const std::string& flag) const {
    std::vector<std::string> names = {"--help", "--config", "--no-shuffle"};
    for (const OptionEntry& entry : table_) names.push_back("--" + entry.name);
    return input_error("unknown option {}{}", flag, did_you_mean(flag, names));
  }

  const std::vector<std::string>& arguments_;
  const std::vector<OptionEntry>& table_;
  size_t next_ = 0;
  Words words_;
};

// The command, whose name is taken off the operands; without a name it is train.
const CommandEntry& take_command(Words& words) {
  for (const CommandEntry& entry : kCommands) {
    if (words.operands.empty() || words.operands.front() != entry.name) continue;
    words.operands.erase(words.operands.begin());
    return entry;
  }
  return kCommands.front();
}

Status check_operands(const CommandEntry& command, const Words& words) {
  const size_t wanted = command.operand.empty() ? 0 : 1;
  const std::vector<std::string>& found = words.operands;
  if (found.size() == wanted) return ok_status();
  if (found.empty()) {
    return input_error("fsdp-run {}: expected {}, found nothing; fsdp-run --help lists the options",
                       command.name, command.operand);
  }
  std::vector<std::string> commands;
  for (const CommandEntry& entry : kCommands) commands.emplace_back(entry.name);
  return input_error("fsdp-run {}: expected {}, found {} words: '{}'{}", command.name,
                     wanted == 0 ? "no file" : "one " + std::string(command.operand), found.size(),
                     joined(found, "' '"), did_you_mean(found.front(), commands));
}

Status check_form(const CommandEntry& command, const Words& words) {
  if (!words.form) return ok_status();
  if (command.command != Command::kMakeTraining) {
    return input_error("--form has no effect with fsdp-run {}", command.name);
  }
  if (*words.form == "training_info" || *words.form == "graph") return ok_status();
  return input_error("--form: expected one of training_info, graph, found '{}'", *words.form);
}

Status check_command(const CommandEntry& command, const Words& words) {
  const bool plans = command.command == Command::kPlan;
  if (words.json && !plans && command.command != Command::kOps) {
    return input_error("--json has no effect with fsdp-run {}", command.name);
  }
  if (!plans && (words.world || words.topology || words.html)) {
    return input_error("--{} has no effect with fsdp-run {}",
                       words.world      ? "world"
                       : words.topology ? "topology"
                                        : "html",
                       command.name);
  }
  if (!plans && words.operations) {
    return input_error("--operations has no effect with fsdp-run {}", command.name);
  }
  if (words.world && parse_integer(*words.world).value_or(0) < 1) {
    return input_error("--world: expected a whole number of at least 1, found '{}'", *words.world);
  }
  const bool exports = command.command == Command::kExport;
  if (!exports && (words.inference || words.verify || words.format)) {
    return input_error("--{} has no effect with fsdp-run {}",
                       words.inference ? "inference"
                       : words.verify  ? "verify"
                                       : "format",
                       command.name);
  }
  if (words.format && *words.format != "onnx" && *words.format != "safetensors") {
    return input_error("--format: expected one of onnx, safetensors, found '{}'", *words.format);
  }
  OFSDP_RETURN_IF_ERROR(check_form(command, words));
  return check_operands(command, words);
}

// MODEL.yaml beside MODEL.onnx, when that is a file.
Status read_model_yaml(const std::string& model, OptionReader& reader) {
  std::error_code ignored;
  std::filesystem::path beside(model);
  beside.replace_extension(".yaml");
  const bool there = beside != model && !std::filesystem::is_directory(model, ignored) &&
                     std::filesystem::is_regular_file(beside, ignored);
  return there ? read_yaml_config(beside.string(), Source::kModelYaml, reader) : ok_status();
}

bool takes_model(Command command) {
  return command == Command::kTrain || command == Command::kPlan || command == Command::kEval;
}

Result<Options> read_sources(const CommandEntry& command, const Words& words, OptionReader& reader,
                             const std::optional<std::string>& omp_num_threads) {
  std::string model = words.operands.empty() ? std::string() : words.operands.front();
  std::optional<OrtSettings> artifacts;
  if (takes_model(command.command) && is_ort_folder(model)) {
    OFSDP_ASSIGN_OR_RETURN(artifacts, read_ort_settings(model, reader));
    model = artifacts->paths.training;
  }
  if (!model.empty() && command.command != Command::kCheckPlugin)
    OFSDP_RETURN_IF_ERROR(read_model_yaml(model, reader));
  if (words.config) {
    OFSDP_RETURN_IF_ERROR(read_config(*words.config, Source::kConfigFile, reader));
  }
  for (const Flag& flag : words.flags) {
    OFSDP_RETURN_IF_ERROR(reader.read(flag.name, flag.text, Source::kFlag, "--" + flag.name));
  }
  if (artifacts) OFSDP_RETURN_IF_ERROR(check_ort_optimizer(*artifacts, reader));
  OFSDP_ASSIGN_OR_RETURN(Options options, reader.finish(command.command, omp_num_threads));
  if (!options.make_plugin.empty() && command.command != Command::kPlan) {
    return input_error("--make-plugin has no effect with fsdp-run {}", command.name);
  }
  options.model = model;
  if (artifacts) OFSDP_RETURN_IF_ERROR(settle_ort(*artifacts, options));
  options.config = words.config.value_or("");
  options.json = words.json;
  options.inference = words.inference;
  options.verify = words.verify;
  options.format = words.format.value_or(options.format);
  options.form = words.form.value_or(options.form);
  if (words.world) options.report.world = parse_integer(*words.world);
  options.report.topology = words.topology.value_or("");
  options.report.operations = words.operations;
  options.report.html = words.html.value_or("");
  return options;
}

}  // namespace

Result<ParsedCommand> parse_command(const std::vector<std::string>& arguments,
                                    const std::optional<std::string>& omp_num_threads) {
  OptionReader reader;
  OFSDP_ASSIGN_OR_RETURN(Words words, Scanner(arguments, reader.table()).scan());
  if (words.help) return ParsedCommand{help_text(), {}, {}};
  const CommandEntry& command = take_command(words);
  OFSDP_RETURN_IF_ERROR(check_command(command, words));
  OFSDP_ASSIGN_OR_RETURN(Options options, read_sources(command, words, reader, omp_num_threads));
  return ParsedCommand{std::nullopt, std::move(options), reader.warnings()};
}

Result<ParsedCommand> parse_command_line(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const char* threads = std::getenv("OMP_NUM_THREADS");
  return parse_command(arguments, threads ? std::optional<std::string>(threads) : std::nullopt);
}

}  // namespace ofsdp::cli
