
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "importer/normalize/onnx_import.h"
#include "kernels/core/op_def.h"
#include "runtime/cli/command_line.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

namespace {

using Kind = OptionEntry::Kind;
using TextList = std::vector<std::string>;

// Splits the values in the help without remarks: "a, b (c, d); e" is "a", "b", "e".
TextList listed_values(const std::string& values) {
  TextList found(1);
  int depth = 0;
  for (const char c : values) {
    if (c == '(') ++depth;
    if (depth == 0 && (c == ',' || c == ';')) found.emplace_back();
    if (depth == 0 && c != ',' && c != ';') found.back() += c;
    if (c == ')') --depth;
  }
  for (std::string& word : found) {
    const size_t first = word.find_first_not_of(' ');
    word = first == std::string::npos ? ""
                                      : word.substr(first, word.find_last_not_of(' ') - first + 1);
  }
  return found;
}

bool is_name(const std::string& word) {
  const auto small = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  const auto part = [&](char c) { return small(c) || (c >= '0' && c <= '9'); };
  return !word.empty() && small(word[0]) && std::ranges::all_of(word, part);
}

bool takes_no_value(const OptionEntry& entry) { return entry.kind == Kind::kBare; }

// Returns the commands that the help shows, sorted by name.
std::vector<const CommandEntry*> shown_commands() {
  std::vector<const CommandEntry*> shown;
  for (const CommandEntry& entry : command_table()) {
    if (!entry.text.empty()) shown.push_back(&entry);
  }
  return shown;
}

TextList shown_names() {
  TextList names;
  for (const CommandEntry* entry : shown_commands()) names.emplace_back(name_of(entry->command));
  return names;
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Options of a run, which a model alone takes too, are of all commands.
bool of_one_command(const OptionEntry& entry) {
  const bool of_run = entry.in_files && contains(entry.commands, Command::kTrain);
  return entry.commands != kEveryCommand && !of_run;
}
bool belongs(const OptionEntry& entry, Command command) {
  if (entry.name == "help" || entry.name == "version") return true;
  return contains(entry.commands, command) &&
         (of_one_command(entry) || takes_options_of_a_run(command));
}

// Quotes for all three shells; only fish reads a backslash between single quotes.
std::string single_quoted(const std::string& text, std::string_view quote = "'\\''") {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(quote) : std::string(1, c);
  return out + "'";
}

std::string bash_case(const TextList& options, const std::string& action) {
  if (options.empty()) return "";
  return "    " + joined(options, "|") + ")\n      " + action + "\n      ;;\n";
}

// Options with the same values share a case.
std::string bash_values() {
  std::map<std::string, TextList> same_words, same_switch;
  TextList files, nothing;
  for (const OptionEntry& entry : option_table()) {
    if (takes_no_value(entry)) continue;
    const ValueOffer offer = offered_values(entry);
    const std::string flag = "--" + entry.name, words = joined(offer.words, " ");
    if (entry.kind == Kind::kSwitch) {
      same_switch[words].push_back(flag);
    } else if (offer.files) {
      files.push_back(flag);
      if (flag == "--output") files.emplace_back("-o");
    } else if (offer.words.empty()) {
      nothing.push_back(flag);
    } else {
      same_words[words].push_back(flag);
    }
  }
  std::string text =
      bash_case(files, "_fsdp_run_files \"$cur\"; return") + bash_case(nothing, "return");
  for (const auto& [words, flags] : same_words) {
    text += bash_case(flags, "_fsdp_run_words " + single_quoted(words) + " \"$cur\"; return");
  }
  for (const auto& [words, flags] : same_switch) {
    text += bash_case(flags, "[[ $cur == -* ]] || { _fsdp_run_words " + single_quoted(words) +
                                 " \"$cur\"; return; }");
  }
  return text;
}

TextList flags_of(Command command) {
  TextList flags;
  for (const OptionEntry& entry : option_table()) {
    if (belongs(entry, command)) flags.push_back("--" + entry.name);
    if (entry.name == "shuffle" && belongs(entry, command)) flags.emplace_back("--no-shuffle");
  }
  return flags;
}

std::string bash_script() {
  TextList names;
  std::string flags;
  for (const CommandEntry* entry : shown_commands()) {
    names.emplace_back(name_of(entry->command));
    flags += "    " + names.back() +
             ") flags=" + single_quoted(joined(flags_of(entry->command), " ")) + " ;;\n";
  }
  return "# bash completion of fsdp-run: source <(fsdp-run completion bash)\n"
         "_fsdp_run_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$2\"); }\n"
         "_fsdp_run_files() {\n"
         "  compopt -o filenames 2>/dev/null\n"
         "  mapfile -t COMPREPLY < <(compgen -f -- \"$1\")\n"
         "}\n"
         "_fsdp_run() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
         "command=train flags\n"
         "  local commands=" +
         single_quoted(joined(shown_names(), " ")) +
         "\n"
         "  COMPREPLY=()\n"
         "  if [[ $cur == = ]]; then\n"  // bash takes --name=value for three words
         "    cur=\n"
         "  elif [[ $prev == = && $COMP_CWORD -gt 2 ]]; then\n"
         "    prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "  fi\n"
         "  case $prev in\n" +
         bash_values() +
         "  esac\n"
         "  [[ $COMP_CWORD -gt 1 && \" $commands \" == *\" ${COMP_WORDS[1]} \"* ]] && "
         "command=${COMP_WORDS[1]}\n"
         "  case $command in\n" +
         flags +
         "  esac\n"
         "  if [[ $cur == -* ]]; then\n"
         "    _fsdp_run_words \"$flags\" \"$cur\"\n"
         "  else\n"
         "    _fsdp_run_files \"$cur\"\n"
         "    if [[ $COMP_CWORD -eq 1 ]]; then\n"
         "      local -a named\n"
         "      mapfile -t named < <(compgen -W \"$commands\" -- \"$cur\")\n"
         "      COMPREPLY+=(\"${named[@]}\")\n"
         "    fi\n"
         "  fi\n"
         "}\n"
         "complete -F _fsdp_run fsdp-run\n";
}

// _arguments interprets brackets and colons.
std::string zsh_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_option(const OptionEntry& entry) {
  std::string spec = entry.kind == Kind::kRepeated ? "*--" : "--";
  spec += entry.name + (takes_no_value(entry) ? "" : entry.kind == Kind::kSwitch ? "=-" : "=");
  spec += "[" + zsh_escaped(entry.help) + "]";
  if (takes_no_value(entry)) return single_quoted(spec);
  const ValueOffer offer = offered_values(entry);
  spec += entry.kind == Kind::kSwitch ? "::" : ":";
  spec += entry.name + ":";
  if (offer.files) {
    spec += "_files";
  } else if (!offer.words.empty()) {
    spec += "(" + joined(offer.words, " ") + ")";
  } else {
    spec += " ";
  }
  return single_quoted(spec);
}

std::string zsh_script() {
  std::string names, cases;
  for (const CommandEntry* entry : shown_commands()) {
    const std::string name(name_of(entry->command));
    names += "    " + single_quoted(name + ":" + first_line(entry->text)) + "\n";
    cases += "    " + name + ")\n      specs=(\n";
    for (const OptionEntry& option : option_table()) {
      if (!belongs(option, entry->command)) continue;
      cases += "        " + zsh_option(option) + "\n";
      if (option.name == "shuffle") cases += "        '--no-shuffle[samples in their order]'\n";
    }
    cases += "      )\n      ;;\n";
  }
  return "#compdef fsdp-run\n"
         "# zsh completion of fsdp-run: source <(fsdp-run completion zsh), after compinit\n"
         "_fsdp_run_first() {\n"
         "  local -a commands=(\n" +
         names +
         "  )\n"
         "  _describe command commands\n"
         "  _files\n"
         "}\n"
         "_fsdp_run() {\n"
         "  local -a specs\n"
         "  local command=train\n"
         "  (( CURRENT > 2 )) && command=${words[2]}\n"
         "  case $command in\n" +
         "    " + joined(shown_names(), "|") +
         ") ;;\n"  // a model in place of a command trains it
         "    *) command=train ;;\n"
         "  esac\n"
         "  case $command in\n" +
         cases +
         "  esac\n"
         "  _arguments $specs '-o[as --output]:file:_files' '1: :_fsdp_run_first' '*:file:_files'\n"
         "}\n"
         "compdef _fsdp_run fsdp-run\n";
}

std::string fish_option(const OptionEntry& entry) {
  constexpr std::string_view kQuote = "\\'";
  std::string line = "complete -c fsdp-run";
  TextList names;
  for (const CommandEntry& command : command_table()) {
    if (of_one_command(entry) && contains(entry.commands, command.command)) {
      names.emplace_back(name_of(command.command));
    }
  }
  if (!names.empty())
    line += " -n " + single_quoted("__fish_seen_subcommand_from " + joined(names, " "));
  line += " -l " + entry.name;
  if (entry.name == "output") line += " -s o";
  const ValueOffer offer = offered_values(entry);
  if (entry.kind == Kind::kSwitch) {
    line += " -f";
  } else if (!takes_no_value(entry)) {
    line += offer.files ? " -r -F" : " -x";
  } else {
    line += " -f";
  }
  if (!offer.words.empty() && entry.kind != Kind::kSwitch) {
    line += " -a " + single_quoted(joined(offer.words, " "));
  }
  return line + " -d " + single_quoted(entry.help, kQuote) + "\n";
}

std::string fish_script() {
  std::string text = "# fish completion of fsdp-run: fsdp-run completion fish | source\n";
  for (const CommandEntry* entry : shown_commands()) {
    text += "complete -c fsdp-run -n __fish_use_subcommand -a " +
            single_quoted(std::string(name_of(entry->command))) + " -d " +
            single_quoted(first_line(entry->text), "\\'") + "\n";
  }
  for (const OptionEntry& entry : option_table()) {
    text += fish_option(entry);
    if (entry.name == "shuffle") {
      text += "complete -c fsdp-run -l no-shuffle -f -d 'samples in their order'\n";
    }
  }
  return text;
}

}  // namespace

ValueOffer offered_values(const OptionEntry& entry) {
  if (takes_no_value(entry)) return {};
  if (entry.kind == Kind::kSwitch) return {.words = {"on", "off"}};
  const auto mentions = [&](const char* word) {
    return entry.values.find(word) != std::string::npos;
  };
  ValueOffer offer;
  offer.files = entry.is_path || mentions("FILE") || mentions("FOLDER") || mentions("DIR");
  for (const std::string& word : listed_values(entry.values)) {
    Options scratch;  // the option itself tells which words are values
    if (is_name(word) && word != "repeated" && entry.set(scratch, word).fine) {
      offer.words.push_back(word);
    }
  }
  return offer;
}

Result<std::string> completion_script(const std::string& shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  return input_error("fsdp-run completion: expected bash, zsh or fish, found '{}'", shell);
}

namespace {

// Escapes text for roff: no requests, no escapes, hyphens that can be copied.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string item(std::string_view bold, std::string_view rest, std::string_view text) {
  std::string entry = ".TP\n\\fB" + roff(bold) + "\\fR";
  if (!rest.empty()) entry += " " + roff(rest);
  return entry + "\n" + roff(text) + "\n";
}

std::string section_of_commands() {
  std::string text = ".SH COMMANDS\n";
  for (const CommandEntry& entry : command_table()) {
    const std::string more = entry.more.empty() ? "" : ". " + std::string(entry.more);
    if (!entry.text.empty())
      text += item("fsdp-run", entry.synopsis, std::string(entry.text) + more);
  }
  return text;
}

std::string sections_of_options() {
  std::string text;
  const std::vector<OptionEntry> table = option_table();
  for (const auto& [group, title] : enum_names(OptionGroup{})) {
    text += format_text(".SS {}\n", title);
    for (const OptionEntry& entry : table) {
      if (entry.group == group) text += item("--" + entry.name, entry.values, entry.help);
    }
  }
  return text;
}

std::string section_of_examples() {
  constexpr std::pair<const char*, const char*> kExamples[] = {
      {"Train on two ranks, in bfloat16, and write the trained file:",
       "fsdp-run bert.onnx --data data --loss cross_entropy -n 2 --bf16 -o trained.onnx"},
      {"See memory and time of that run before it starts:",
       "fsdp-run plan bert.onnx --data data --loss cross_entropy -n 2 --bf16"},
      {"Go on from the last checkpoint, on four ranks:",
       "fsdp-run bert.onnx --data data --loss cross_entropy -n 4 --checkpoint-dir ck --resume "
       "latest"},
      {"Adapt a model with LoRA:",
       "fsdp-run llama.onnx --data data.yaml --loss cross_entropy --lora all --lr 1e-4"},
      {"Write the last checkpoint as a file for inference:",
       "fsdp-run export ck --inference -o model.onnx"}};
  std::string text = ".SH EXAMPLES\n";
  for (const auto& [what, command] : kExamples) {
    text += format_text("{}\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n.PP\n", what, roff(command));
  }
  return text;
}

}  // namespace

std::string manual_page() {
  return std::string(
             ".TH FSDP\\-RUN 1 \"\" \"onnx\\-fsdp\" \"User Commands\"\n"
             ".SH NAME\n"
             "fsdp\\-run \\- train ONNX models, sharded over ranks on CPUs and GPUs\n"
             ".SH SYNOPSIS\n"
             ".B fsdp\\-run\n"
             "[\\fICOMMAND\\fR] \\fIMODEL.onnx\\fR [\\fIoptions\\fR]\n"
             ".SH DESCRIPTION\n"
             "Trains an ONNX model with Fully Sharded Data Parallel and writes the trained weights "
             "back into\nthe same ONNX file.\n") +
         section_of_commands() +
         ".SH OPTIONS\n"
         "Flags beat\n"
         ".B \\-\\-config\n"
         "(YAML: the same names with _ for \\-), which beats \\fIMODEL.yaml\\fR next to "
         "\\fIMODEL.onnx\\fR,\nwhich beats the defaults. The default value comes first.\n"
         ".B \\-o\n"
         "is\n"
         ".BR \\-\\-output .\n" +
         sections_of_options() + section_of_examples() + ".SH EXIT STATUS\n" +
         item("0", "", "done") + item("1", "", "the run failed") +
         item("2", "", "the command or its input is wrong") + ".SH ENVIRONMENT\n" +
         item("OMP_NUM_THREADS", "", "compute threads of a rank, without --threads") +
         item("RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT", "",
              "make the process a rank, as torchrun does") +
         item("OFSDP_SECRET_FILE, OFSDP_SECRET", "", "the secret of a run on several hosts");
}

namespace {

// Operators without a gradient are backward operators or not differentiable.
bool has_backward(const OpDef& op) { return op.grad != nullptr || is_composite(op); }

std::string cpu_kernels(const OpDef& op) {
  if (op.view) return "view";
  if (is_composite(op)) return "standard operators";
  std::vector<std::string> names;
  for (const Implementation& implementation : op.cpu) names.push_back(implementation.name);
  return format_text("{}", joined(names, ", "));
}

// Returns the CUDA kernels of the plug-ins for an operator.
std::string cuda_kernels(const LoadedPlugins& plugins, const OpDef& op) {
  for (const PluginOperatorPtr& p : plugins.operators) {
    if (p->full_name() != op.full_name() || p->def.cuda_forward == nullptr) continue;
    return p->def.cuda_backward == nullptr ? "plug-in (forward)" : "plug-in";
  }
  return "";
}

// Returns the opsets from which the importer accepts the operator.
std::string versions(const OpDef& op) {
  if (op.last_opset > 0) return format_text("{}-{}", op.first_opset, op.last_opset);
  if (!op.domain.empty()) return format_text("{}", op.first_opset);
  return format_text("{}-{}", oldest_opset(op.name), kOpset);
}

nlohmann::ordered_json row(const LoadedPlugins& plugins, const OpDef& op) {
  return {{"domain", op.domain.empty() ? "ai.onnx" : op.domain},
          {"name", op.name},
          {"versions", versions(op)},
          {"forward", true},
          {"backward", has_backward(op)},
          {"cpu", cpu_kernels(op)},
          {"cuda", cuda_kernels(plugins, op)}};
}

// Returns the operators of the plug-ins if there are any, else all.
std::vector<const OpDef*> listed(const LoadedPlugins& plugins) {
  std::vector<const OpDef*> list;
  for (const auto& [key, op] : plugins.registry.all()) {
    const bool theirs = std::ranges::any_of(plugins.operators, [&, &op = op](const auto& p) {
      return p->full_name() == op.full_name();
    });
    if (theirs || plugins.libraries.empty()) list.push_back(&op);
  }
  return list;
}

// Returns "plugin:NAME" for each optimizer, as --optimizer takes it.
std::vector<std::string> own_optimizers(const LoadedPlugins& plugins) {
  std::vector<std::string> names;
  for (const OptimizerDef& def : plugins.optimizers) {
    if (def.name.starts_with("plugin:")) names.push_back(def.name);
  }
  return names;
}

}  // namespace

std::string operator_table(const LoadedPlugins& plugins, bool json) {
  if (json) {
    auto rows = nlohmann::ordered_json::array();
    for (const OpDef* op : listed(plugins)) rows.push_back(row(plugins, *op));
    return rows.dump(1) + "\n";
  }
  std::string out = format_text("{:<11} {:<28} {:<9} {:<8} {:<9} {}\n", "domain", "name",
                                "versions", "forward", "backward", "cpu");
  for (const OpDef* op : listed(plugins)) {
    out += format_text("{:<11} {:<28} {:<9} {:<8} {:<9} {}\n",
                       op->domain.empty() ? "ai.onnx" : op->domain, op->name, versions(*op), "yes",
                       has_backward(*op) ? "yes" : "no", cpu_kernels(*op));
  }
  for (const OpDef* op : listed(plugins)) {
    const std::string cuda = cuda_kernels(plugins, *op);
    if (!cuda.empty()) out += format_text("cuda kernels: {} ({})\n", op->full_name(), cuda);
  }
  for (const std::string& name : own_optimizers(plugins)) out += "--optimizer " + name + "\n";
  return out;
}

}  // namespace ofsdp::cli
