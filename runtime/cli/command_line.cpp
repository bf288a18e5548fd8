#include "runtime/cli/command_line.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "kernels/base/text.h"
#include "runtime/cli/config/config_files.h"
#include "runtime/cli/config/foreign/foreign_file.h"
#include "runtime/cli/launch/launcher.h"
#include "runtime/cli/options/option_reader.h"
#include "runtime/remote/cache.h"
#include "runtime/train/setup/run_folder.h"

namespace ofsdp::cli {

namespace {

// One row a command. `text` is one line of the help.
constexpr auto kCommands = std::to_array<CommandEntry>({
    {Command::kTrain, "MODEL.onnx", "MODEL.onnx [options]", "train the model"},
    {Command::kResume, "RUN", "resume RUN [options]", "continue a run from its last checkpoint",
     "RUN is the run's folder; its own command is used."},
    {Command::kPlan, "MODEL.onnx", "plan MODEL.onnx [options]",
     "memory and time of a run, without running it",
     "--world N and --topology FILE plan for ranks that are not here."},
    {Command::kEval, "MODEL.onnx", "eval MODEL.onnx [options]",
     "loss and metrics on the evaluation data"},
    {Command::kPredict, "MODEL.onnx or RUN", "predict MODEL|RUN -o FILE",
     "write the outputs for every row of the data",
     "FILE is .npy, .npz or .csv; --prediction NAME, repeated, names outputs."},
    {Command::kData, "DATA", "data DATA [MODEL.onnx]",
     "columns, missing values; the YAML file to write",
     "DATA is as for --data, or a text file. With a model: its inputs of the first row.", true},
    {Command::kPrepare, "DATA", "prepare DATA [MODEL.onnx] [-o FILE]",
     "write the YAML file for --data",
     "DATA is a table, a text, or a folder of tables, images or arrays.", true},
    {Command::kDoctor, "MODEL.onnx", "doctor MODEL.onnx [options]",
     "likely problems, each with the option that fixes it"},
    {Command::kCheck, "MODEL.onnx", "check MODEL.onnx [options]",
     "compare loss and gradients with references"},
    {Command::kExport, "CKPT_DIR", "export CKPT_DIR -o OUT.onnx",
     "write a checkpoint as one ONNX file"},
    {Command::kConfig, "", "config [MODEL.onnx] [-o FILE]", "ask for options, write a YAML file",
     "The keys of MODEL.yaml are the defaults.", true},
    {Command::kMakeTraining, "MODEL.onnx", "make-training MODEL.onnx -o OUT.onnx",
     "write the model with its training or gradients"},
    {Command::kDemo, "", "demo [--output-dir DIR]", "train a small made-up model on two ranks"},
    {Command::kOps, "", "ops [--json]", "all operators: domain, versions, kernels"},
    {Command::kCheckPlugin, "LIB.so", "check-plugin LIB.so",
     "try a plug-in's operators on its own samples"},
    {Command::kCompletion, "bash, zsh or fish", "completion SHELL",
     "completions for bash, zsh or fish", "source <(fsdp-run completion bash) loads them."},
    {Command::kMan, "", "man", "the manual page", "man -l <(fsdp-run man) shows it.", true},
    {Command::kHelp, "", "help [TOPIC]", "help on a command or an option; all: every option", "",
     true},
    {Command::kVersion, "", "version", "version, commit, CUDA, oneDNN, processor"},
});

}  // namespace

std::span<const CommandEntry> command_table() { return kCommands; }

bool takes_options_of_a_run(Command command) {
  using enum Command;
  return command != kDemo && command != kCompletion && command != kMan && command != kHelp &&
         command != kVersion;
}

bool takes_data(Command command) {
  return command == Command::kData || command == Command::kPrepare;
}

bool takes_model(Command command) {
  return command == Command::kTrain || command == Command::kPlan || command == Command::kEval ||
         command == Command::kDoctor || command == Command::kCheck;
}

namespace {

struct Flag {
  std::string name;  // without the dashes
  std::string text;
  std::string said;  // as written, for messages
};

// The command line's words, not yet interpreted.
struct Words {
  std::vector<std::string> operands;
  std::vector<Flag> flags;
  std::vector<SaidWord> foreign;  // from other launchers
  ForeignLauncher launcher = ForeignLauncher::kNone;
  bool plans = false;  // --dry-run
};

class Scanner {
 public:
  Scanner(const std::vector<std::string>& arguments, const std::vector<OptionEntry>& table)
      : arguments_(arguments), table_(table) {}

  Result<Words> scan() {
    bool options_end = false;
    while (next_ < arguments_.size()) {
      const std::string& word = arguments_[next_++];
      const bool topic = !words_.operands.empty() && words_.operands.front() == "help";
      if (options_end || topic || !word.starts_with('-') || word == "-") {
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
    const size_t equals = word.find('=');
    const std::string flag = word == "-o"   ? "--output"
                             : word == "-h" ? "--help"
                             : word == "-n" ? "--nproc-per-node"
                                            : word.substr(0, equals);
    const std::string name = flag.starts_with("--") ? flag.substr(2) : std::string();
    const bool negated = name == "no-shuffle";
    const OptionEntry* entry = find_entry(table_, negated ? "shuffle" : name);
    if (word == "--dry-run") return words_.plans = true, ok_status();
    if (entry == nullptr) return scan_other_name(name, flag, word, equals);
    const bool bare = entry->kind == OptionEntry::Kind::kBare;
    if (bare && equals != std::string::npos) return unknown_option(flag);
    words_.flags.push_back({negated ? "no-shuffle" : name, "on", flag});
    std::string& text = words_.flags.back().text;
    if (bare) return ok_status();
    if (equals != std::string::npos) {
      text = word.substr(equals + 1);
    } else if (entry->kind == OptionEntry::Kind::kSwitch) {
      text = switch_text();
    } else {
      OFSDP_RETURN_IF_ERROR(take_value(flag, text));
    }
    return entry->kind == OptionEntry::Kind::kPair ? take_second(flag, text) : ok_status();
  }

  Status take_second(const std::string& flag, std::string& text) {
    std::string second;
    if (!take_value(flag, second).ok()) {
      return input_error("{}: expected two files, found one: '{}'", flag, text);
    }
    text += '\0' + second;
    return ok_status();
  }

  // Takes another name of an option; a switch such as --bf16 gives the option a value.
  Status scan_other_name(const std::string& name, const std::string& flag, const std::string& word,
                         size_t equals) {
    const OptionSynonym* const other = find_synonym(name);
    if (other == nullptr) return scan_foreign(flag, word, equals);
    std::string text;
    if (equals != std::string::npos) {
      text = word.substr(equals + 1);
    } else if (other->value.empty()) {
      OFSDP_RETURN_IF_ERROR(take_value(flag, text));
    } else {
      text = switch_text();
    }
    if (!other->value.empty()) {
      const std::optional<bool> on = parse_switch(text);
      if (!on) return input_error("{}: expected on or off, found '{}'", flag, text);
      if (!*on) return ok_status();
      text = other->value;
    }
    words_.flags.push_back({std::string(other->option), text, flag});
    return ok_status();
  }

  // Takes another launcher's word (config/foreign/foreign_file.h).
  Status scan_foreign(const std::string& flag, const std::string& word, size_t equals) {
    const std::optional<CommandWord> known = find_command_word(flag);
    const bool bare = known && known->kind == CommandWord::Kind::kBare;
    if (!known || (bare && equals != std::string::npos)) return unknown_option(flag);
    std::string text = known->value.empty() ? "on" : known->value;
    if (equals != std::string::npos) {
      text = word.substr(equals + 1);
    } else if (known->kind == CommandWord::Kind::kValue) {
      OFSDP_RETURN_IF_ERROR(take_value(flag, text));
    } else if (known->kind == CommandWord::Kind::kOptional && next_ < arguments_.size() &&
               takes_next(flag, arguments_[next_])) {
      text = arguments_[next_++];
    }
    if (known->flag.empty()) {
      words_.foreign.push_back({flag, text});
    } else {
      words_.flags.push_back({known->flag, text, flag});
    }
    return ok_status();
  }

  // A switch means on, unless on or off follows.
  std::string switch_text() {
    const bool follows = next_ < arguments_.size() && parse_switch(arguments_[next_]);
    return follows ? arguments_[next_++] : "on";
  }

  // Negative numbers are values; other words with a dash are options.
  static bool is_option(const std::string& word) {
    return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9') &&
           word[1] != '.';
  }

  Status take_value(const std::string& flag, std::string& text) {
    const bool missing = next_ == arguments_.size();
    if (missing || is_option(arguments_[next_])) {
      return input_error("{}: expected a value, found {}", flag,
                         missing ? std::string("nothing") : "'" + arguments_[next_] + "'");
    }
    text = arguments_[next_++];
    return ok_status();
  }

  Status unknown_option(const std::string& flag) const {
    const std::string word = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    std::string hint = log_hint(word);
    std::vector<std::string> names = {"no-shuffle"};
    for (const OptionEntry& entry : table_) names.push_back(entry.name);
    for (const OptionSynonym& other : option_synonyms()) names.emplace_back(other.name);
    if (hint.empty()) hint = name_hint(word, names);
    const size_t quote = hint.find("mean '");
    if (quote != std::string::npos) hint.insert(quote + 6, "--");
    return input_error("unknown option {}{}", flag, hint);
  }

  const std::vector<std::string>& arguments_;
  const std::vector<OptionEntry>& table_;
  size_t next_ = 0;
  Words words_;
};

const CommandEntry* find_command(Command command) {
  return std::ranges::find(kCommands, command, &CommandEntry::command);
}

bool is_command(const Words& words) {
  return !words.operands.empty() && value_named<Command>(words.operands.front()).has_value();
}

// Removes the command's name from the operands; without a name it is train.
const CommandEntry& take_command(Words& words) {
  if (!is_command(words)) return command_table().front();
  const Command command = *value_named<Command>(words.operands.front());
  words.operands.erase(words.operands.begin());
  return *find_command(command);
}

// Finds the pages that `fsdp-run`, --help, --version, `help` and `version` print. `named`: the
// command was; without words there is only an overview.
Status find_help(const CommandEntry& command, bool named, const Words& words, bool no_words,
                 ParsedCommand& parsed) {
  const bool asked = std::ranges::count(words.flags, "help", &Flag::name) > 0;
  parsed.options.version = std::ranges::count(words.flags, "version", &Flag::name) > 0 ||
                           (command.command == Command::kVersion && words.operands.empty());
  if (no_words) parsed.help = overview_text();
  if (asked) parsed.help = named ? command_help(command) : help_text();
  const bool on_topic = command.command == Command::kHelp && !asked && words.flags.empty();
  if (on_topic && words.operands.empty()) parsed.help = help_text();
  if (on_topic && words.operands.size() == 1) {
    OFSDP_ASSIGN_OR_RETURN(parsed.help, help_on(words.operands.front()));
  }
  parsed.options.help = !parsed.help.empty();
  return ok_status();
}

Status check_model_name(const CommandEntry& command, const std::string& model) {
  if (!takes_model(command.command) && command.command != Command::kMakeTraining) return {};
  std::error_code error;
  const bool word = model.find_first_of("./") == std::string::npos;
  if (!word || std::filesystem::exists(model, error)) return {};
  return input_error("{}: expected a command or MODEL.onnx, found no such file{}", model,
                     name_hint(model, names_of<Command>()));
}

Status check_operands(const CommandEntry& command, const Words& words) {
  const size_t wanted = command.operand.empty() ? 0 : 1;
  const size_t most = wanted + (command.may_have_operand ? 1 : 0);
  const std::vector<std::string>& found = words.operands;
  if (found.size() == 1 && wanted == 1) return check_model_name(command, found.front());
  if (found.size() >= wanted && found.size() <= most) return ok_status();
  const std::string_view name = name_of(command.command);
  if (found.empty()) {
    return input_error("fsdp-run {}: expected {}, found nothing; fsdp-run --help lists the options",
                       name, command.operand);
  }
  std::string hint = name_hint(found.front(), names_of<Command>());
  if (found.back().ends_with(".yaml")) hint = "; a YAML file follows --config or --data";
  return input_error("fsdp-run {}: expected {}, found {} words: '{}'{}", name,
                     wanted == 0 ? "no file" : "one " + std::string(command.operand), found.size(),
                     joined(found, "' '"), hint);
}

// Reads the flags in the table's order; the last among equal flags counts.
Status read_commands_flags(const CommandEntry& command, const Words& words, OptionReader& reader) {
  for (const OptionEntry& entry : reader.table()) {
    const auto said = std::find_if(words.flags.rbegin(), words.flags.rend(),
                                   [&](const Flag& flag) { return flag.name == entry.name; });
    if (entry.in_files || said == words.flags.rend()) continue;
    if (!contains(entry.commands, command.command)) {
      return no_effect_with(entry.name, command.command);
    }
    OFSDP_RETURN_IF_ERROR(reader.read(entry.name, said->text, Source::kFlag, said->said));
  }
  return ok_status();
}

// An option that the command does not take would be ignored silently.
Status check_alone(const CommandEntry& command, const Words& words, const OptionReader& reader) {
  if (takes_options_of_a_run(command.command)) return ok_status();
  for (const Flag& flag : words.flags) {
    const OptionEntry* entry = find_entry(reader.table(), flag.name);
    const bool own = entry != nullptr && entry->commands == only(command.command);
    if (!own) return no_effect_with(flag.name, command.command);
  }
  return ok_status();
}

// Returns whether the words name a file as data.
bool names_as_data(const Words& words, bool of_data, const std::filesystem::path& file) {
  std::error_code ignored;
  const auto same = [&](const std::string& text) {
    return std::filesystem::equivalent(text, file, ignored);
  };
  return (of_data && !words.operands.empty() && same(words.operands.front())) ||
         std::ranges::any_of(words.flags, [&](const Flag& flag) {
           return (flag.name == "data" || flag.name == "eval-data") && same(flag.text);
         });
}

// Reads MODEL.yaml next to MODEL.onnx if it is a file, and no data.
Status read_model_yaml(const std::string& model, const Words& words, bool of_data,
                       OptionReader& reader) {
  std::error_code ignored;
  std::filesystem::path beside(model);
  beside.replace_extension(".yaml");
  const bool there = beside != model && !std::filesystem::is_directory(model, ignored) &&
                     std::filesystem::is_regular_file(beside, ignored) &&
                     !names_as_data(words, of_data, beside);
  return there ? read_yaml_config(beside.string(), Source::kModelYaml, reader) : ok_status();
}

// A file of ONNX Runtime's training artifacts is no model without the others.
Status check_no_artifact(const std::string& model) {
  const std::string folder = ort_folder_of(model);
  if (folder.empty()) return ok_status();
  return input_error("{}: is one of ONNX Runtime's training artifacts: give their folder, {}/",
                     model, folder);
}

// Returns the trained model if the operand of `eval` is a run's folder.
std::string model_of_run(const std::string& operand) {
  std::error_code ignored;
  for (const char* name : {"model.onnx", "model.inference.onnx"}) {
    const std::filesystem::path model = std::filesystem::path(operand) / name;
    if (std::filesystem::is_regular_file(model, ignored)) return model.string();
  }
  return operand;
}

Status read_sources(const CommandEntry& command, const Words& words, OptionReader& reader,
                    const std::optional<std::string>& omp_num_threads, ParsedCommand& parsed) {
  const bool of_data = takes_data(command.command);
  const size_t before = of_data ? 1 : 0;  // words before the model
  std::string model = words.operands.size() > before ? words.operands[before] : std::string();
  if (takes_model(command.command) || command.command == Command::kMakeTraining ||
      command.command == Command::kPredict || before == 1) {
    OFSDP_ASSIGN_OR_RETURN(model, local_file(model));
  }
  if (command.command == Command::kEval) model = model_of_run(model);
  std::optional<OrtSettings> artifacts;
  if (takes_model(command.command)) OFSDP_RETURN_IF_ERROR(check_no_artifact(model));
  if (takes_model(command.command) && is_ort_folder(model)) {
    OFSDP_ASSIGN_OR_RETURN(artifacts, read_ort_settings(model, reader));
    model = artifacts->paths.training;
    parsed.origin.artifacts = artifacts->folder;
    if (artifacts->optimizer) {
      parsed.origin.transformers_adamw = artifacts->optimizer->transformers;
      parsed.origin.bias_correction = artifacts->optimizer->bias_correction;
    }
  }
  if (!model.empty() && command.command != Command::kCheckPlugin &&
      takes_options_of_a_run(command.command))
    OFSDP_RETURN_IF_ERROR(read_model_yaml(model, words, of_data, reader));
  if (!reader.config().empty()) {
    OFSDP_RETURN_IF_ERROR(read_config(reader.config(), Source::kConfigFile, reader));
  }
  OFSDP_RETURN_IF_ERROR(read_command_words(words.foreign, reader, read_config));
  for (const Flag& flag : words.flags) {
    const OptionEntry* entry = find_entry(reader.table(), flag.name);
    if (entry != nullptr && !entry->in_files) continue;
    OFSDP_RETURN_IF_ERROR(reader.read(flag.name, flag.text, Source::kFlag, flag.said));
  }
  if (artifacts) OFSDP_RETURN_IF_ERROR(check_ort_optimizer(*artifacts, reader));
  OFSDP_ASSIGN_OR_RETURN(parsed.options, reader.finish(command.command, omp_num_threads));
  parsed.options.model = model;
  EditOptions& edit = parsed.options.edit;
  edit.adapter = adapter_file_to_write(edit.adapter);
  edit.adapters.from = adapter_file_in(edit.adapters.from);
  if (of_data) {
    parsed.options.run.data = {.kind = DataChoice::Kind::kPath, .path = words.operands.front()};
  }
  for (const Flag& flag : words.flags) {
    const bool named = command.command == Command::kPredict && flag.name == "prediction";
    if (named) parsed.options.predictions.push_back(flag.text);
  }
  OFSDP_RETURN_IF_ERROR(resolve_meeting(parsed.options.launch, reader));
  parsed.origin.overriding = reader.overriding();
  parsed.origin.settings = reader.files();
  parsed.warnings = reader.warnings();
  return artifacts ? check_ort_options(*artifacts, parsed.options) : ok_status();
}

// Splits words, of which other launchers' names are taken away.
Result<Words> words_of(std::vector<std::string> arguments, const std::vector<OptionEntry>& table) {
  const ForeignLauncher launcher = take_launcher(arguments);
  OFSDP_ASSIGN_OR_RETURN(Words words, Scanner(arguments, table).scan());
  words.launcher = launcher;
  return words;
}

std::string absolute_text(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// Makes a flag's path absolute, as the working directory changes.
void locate(Flag& flag, const OptionEntry& entry) {
  const bool word = flag.text == "none" || flag.text == "latest" || flag.text == "synthetic" ||
                    is_address(flag.text);
  const bool searched = flag.name == "plugin" && flag.text.find('/') == std::string::npos;
  const bool path = entry.is_path || flag.name == "config";
  if (path && !word && !searched) flag.text = absolute_text(flag.text);
}

// Replaces the words `RUN [options]` of `resume` by those of the run, with the options after them.
Status continue_run(Words& words, const std::vector<OptionEntry>& table, ParsedCommand& parsed) {
  OFSDP_REJECT_IF(words.operands.size() != 1,
                  "fsdp-run resume: expected one RUN, the folder of a run, found {} words",
                  words.operands.size());
  std::string run = words.operands.front();
  while (run.size() > 1 && run.ends_with('/')) run.pop_back();
  OFSDP_ASSIGN_OR_RETURN(const RunCommand command, read_run_command(run));
  OFSDP_ASSIGN_OR_RETURN(Words own,
                         words_of({command.words.begin() + 1, command.words.end()}, table));
  for (Flag& flag : words.flags) {
    const OptionEntry* entry = find_entry(table, flag.name);
    if (entry == nullptr) continue;
    locate(flag, *entry);
    const bool repeated = entry->kind == OptionEntry::Kind::kRepeated;
    if (repeated) std::erase_if(own.flags, [&](const Flag& f) { return f.name == flag.name; });
  }
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  if (here != command.folder) {
    run = absolute_text(run);
    std::filesystem::current_path(command.folder, error);
    OFSDP_REJECT_IF(error, "resume {}: its command was started in {}: {}", run, command.folder,
                    error.message());
    parsed.started_in = here;
  }
  parsed.resumes = run;
  own.flags.insert(own.flags.end(), words.flags.begin(), words.flags.end());
  own.foreign.insert(own.foreign.end(), words.foreign.begin(), words.foreign.end());
  words = std::move(own);
  return ok_status();
}

// A run that `resume` continues begins at its latest checkpoint, if there is one and no `--resume`
// names another.
Status begin_at_latest(ParsedCommand& parsed, bool named) {
  Options& options = parsed.options;
  OFSDP_REJECT_IF(options.command != Command::kTrain,
                  "resume {}: expected a run that trains, found fsdp-run {}", parsed.resumes,
                  name_of(options.command));
  options.folder.taken = parsed.resumes;
  if (named) return ok_status();
  const auto saved = complete_checkpoints(checkpoint_folder(options, parsed.resumes));
  if (saved.ok() && !saved->empty()) options.checkpoint.resume = "latest";
  return ok_status();
}

// Says where a command makes the folder of its run. With --output it makes one only if an option
// asks for it. `otherwise`: in place of --run-dir; may be null.
void place_folder(Options& options, const char* otherwise) {
  RunFolderOptions& folder = options.folder;
  const bool keeps = options.command == Command::kTrain || options.command == Command::kPlan ||
                     options.command == Command::kDoctor;
  const bool asked = folder.dir || !folder.name.empty();
  // `latest` of a new folder would be nothing: the run refuses it.
  const bool homeless = options.checkpoint.resume == "latest" && options.checkpoint.dir.empty();
  if (!keeps || !folder.taken.empty() || homeless) return;
  if (!asked && !options.files.output.empty()) return;
  const std::string usual = otherwise != nullptr && *otherwise != 0 ? otherwise : "runs";
  const bool none = usual == "none" && folder.name.empty();
  folder.parent = folder.dir ? *folder.dir : none ? "" : usual == "none" ? "runs" : usual;
}

// Follows the defaults of `accelerate` and `deepspeed` for options not given.
Status take_habits(const CommandEntry& command, Words& words, OptionReader& reader) {
  const auto said = [&](std::string_view name) {
    return std::ranges::count(words.flags, name, &Flag::name) > 0;
  };
  std::error_code ignored;
  if (words.launcher == ForeignLauncher::kAccelerate && command.command == Command::kConfig) {
    for (Flag& flag : words.flags) {
      if (flag.name == "config") flag.name = "output";
    }
    if (said("output")) return ok_status();
    const std::string path = accelerate_default_file();
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    words.flags.push_back({"output", path, "accelerate config"});
    return ok_status();
  }
  const bool all_devices = words.launcher == ForeignLauncher::kAccelerate ||
                           words.launcher == ForeignLauncher::kDeepSpeed;
  if (!all_devices) return ok_status();
  OFSDP_RETURN_IF_ERROR(reader.read("nproc-per-node", "auto", Source::kDefault, "deepspeed"));
  const bool accelerate = words.launcher == ForeignLauncher::kAccelerate;
  const std::string path = accelerate ? accelerate_default_file() : kDeepSpeedHostfile;
  const char* const name = accelerate ? "config" : "hostfile";
  if (!said(name) && std::filesystem::is_regular_file(path, ignored)) {
    words.flags.insert(words.flags.begin(), {name, path, path});
  }
  return ok_status();
}

Result<ParsedCommand> parse_words(Words words, OptionReader reader, bool no_words,
                                  const std::optional<std::string>& omp_num_threads) {
  ParsedCommand parsed;
  const bool named = is_command(words);
  const CommandEntry* entry = &take_command(words);
  if (words.plans) {
    if (!takes_model(entry->command)) return no_effect_with("dry-run", entry->command);
    entry = find_command(Command::kPlan);
  }
  OFSDP_RETURN_IF_ERROR(find_help(*entry, named, words, no_words, parsed));
  if (parsed.options.help || parsed.options.version) return parsed;
  const bool resumes = entry->command == Command::kResume;
  const bool from_named = std::ranges::count(words.flags, "resume", &Flag::name) > 0;
  if (resumes) {
    OFSDP_RETURN_IF_ERROR(continue_run(words, reader.table(), parsed));
    entry = &take_command(words);
  }
  const CommandEntry& command = *entry;
  OFSDP_RETURN_IF_ERROR(take_habits(command, words, reader));
  parsed.unasked = words.launcher == ForeignLauncher::kAccelerate &&
                   command.command == Command::kConfig &&
                   words.operands == std::vector<std::string>{"default"};
  if (parsed.unasked) words.operands.clear();
  OFSDP_RETURN_IF_ERROR(read_commands_flags(command, words, reader));
  OFSDP_RETURN_IF_ERROR(check_operands(command, words));
  OFSDP_RETURN_IF_ERROR(check_alone(command, words, reader));
  OFSDP_RETURN_IF_ERROR(read_sources(command, words, reader, omp_num_threads, parsed));
  if (resumes) OFSDP_RETURN_IF_ERROR(begin_at_latest(parsed, from_named));
  return parsed;
}

}  // namespace

Result<ParsedCommand> parse_command(const std::vector<std::string>& arguments,
                                    const std::optional<std::string>& omp_num_threads) {
  OptionReader reader;
  OFSDP_ASSIGN_OR_RETURN(Words words, words_of(arguments, reader.table()));
  const auto pair = std::ranges::find(words.flags, "compare", &Flag::name);
  if (pair == words.flags.end()) {
    return parse_words(std::move(words), std::move(reader), arguments.empty(), omp_num_threads);
  }
  OFSDP_REJECT_IF(std::ranges::count(words.flags, "config", &Flag::name) > 0,
                  "--compare with --config: expected all settings in the two files");
  Words second = words;
  const size_t end = pair->text.find('\0');
  second.flags.push_back({"config", pair->text.substr(end + 1), "--compare"});
  words.flags.push_back({"config", pair->text.substr(0, end), "--compare"});
  OFSDP_ASSIGN_OR_RETURN(ParsedCommand parsed,
                         parse_words(std::move(words), std::move(reader), false, omp_num_threads));
  OFSDP_ASSIGN_OR_RETURN(ParsedCommand other,
                         parse_words(std::move(second), OptionReader(), false, omp_num_threads));
  parsed.compared = std::make_shared<ParsedCommand>(std::move(other));
  return parsed;
}

Result<ParsedCommand> parse_command_line(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const char* threads = std::getenv("OMP_NUM_THREADS");
  auto parsed =
      parse_command(arguments, threads ? std::optional<std::string>(threads) : std::nullopt);
  for (ParsedCommand* one = parsed.ok() ? &*parsed : nullptr; one; one = one->compared.get()) {
    place_folder(one->options, std::getenv("OFSDP_RUN_DIR"));
  }
  return parsed;
}

}  // namespace ofsdp::cli
