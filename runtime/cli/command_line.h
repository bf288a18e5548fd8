// fsdp-run's command line and the files that it names: flags beat `--config FILE`, which beats
// MODEL.yaml next to MODEL.onnx (same stem), which beats the defaults. Reads no other files.
//
// Has a table-driven reader in place of CLI11: flags, YAML keys, help and printed configuration
// share one list (option_table.h), and an error is one line with flag, expected and found. Accepts
// `--name value` and `--name=value`; a switch stands alone or with on/off; `--` ends the options.
// If a flag is given twice, the last one counts, except for repeated options. Errors: kInput, one
// line.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "plugins/loading/loader.h"
#include "runtime/cli/options/option_table.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// The command list, from which usage, operands, completions, help and the manual page are made.
struct CommandEntry {
  Command command;
  std::string_view operand;       // required operand; empty: none
  std::string_view synopsis;      // after "fsdp-run "
  std::string_view text;          // one line for the list of commands
  std::string_view more = {};     // more lines, for the command's own help
  bool may_have_operand = false;  // one more word may follow; `more` says which
};

// The first entry is the command without a name on the command line.
std::span<const CommandEntry> command_table();

bool takes_options_of_a_run(Command command);
bool takes_data(Command command);  // its first operand is data, the second a model
bool takes_model(Command command);

struct ParsedCommand {
  Options options;  // if `version` is set: print version_text and exit 0
  // If `options.help` is set: the help to print before exit 0.
  std::string help;
  ModelOrigin origin;
  std::vector<std::string> warnings;  // for stderr, once a run
  bool unasked = false;    // `accelerate config default`: take every default without asking
  std::string resumes;     // `resume`: the run's folder; else empty
  std::string started_in;  // the working directory before `resume` changed it; else empty
  // `plan --compare A B`: the command with --config B, where this one has --config A; else null.
  std::shared_ptr<ParsedCommand> compared = {};
};

// The help's pages (help_pages.cpp). All are made from the tables of commands and options.

std::string overview_text();                          // `fsdp-run`: what to type first
std::string help_text();                              // `--help`: at most 60 lines
std::string full_help_text();                         // `help all`: every option of a run
std::string command_help(const CommandEntry& entry);  // `COMMAND --help`
std::string option_help(const OptionEntry& entry);    // `help OPTION`
// `help TOPIC`: all, a command or an option with or without dashes. Returns kInput with the nearest
// name if there is no such topic.
Result<std::string> help_on(const std::string& topic);
// The options by group as Markdown: `fsdp-run man markdown > docs/reference/options.md`.
std::string options_reference();
// `version` and --version: the version's line, then what this build and machine have.
std::string version_text(const char* version);

// argv[0] is the program. Reads OMP_NUM_THREADS and OFSDP_RUN_DIR (the default of --run-dir) from
// the environment, and says where a run makes its folder, which parse_command leaves open.
Result<ParsedCommand> parse_command_line(int argc, const char* const* argv);

// The same without the program's name and the environment, for tests. `resume RUN [options]` is the
// command of that run with these options, in the folder where it was started, which becomes the
// working directory.
Result<ParsedCommand> parse_command(const std::vector<std::string>& arguments,
                                    const std::optional<std::string>& omp_num_threads);

// Returns the completions for a shell, made from the tables (commands and options); users load it
// with `source <(fsdp-run completion bash)`. `shell` must be bash, zsh or fish, else kInput.

Result<std::string> completion_script(const std::string& shell);

// Values that a shell offers after an option.
struct ValueOffer {
  std::vector<std::string> words;  // names that the option accepts
  bool files = false;
};
ValueOffer offered_values(const OptionEntry& entry);

// Returns the manual page fsdp-run(1) in man(7)'s macros, made from the same tables: `fsdp-run man
// > fsdp-run.1`.
std::string manual_page();

// Returns `fsdp-run ops`'s table as text or JSON: every registered operator, or with --plugin the
// plug-ins'.

std::string operator_table(const LoadedPlugins& plugins, bool json);

// The program fsdp-run as a function; the library's onnx_fsdp_command calls it. Starts itself again
// once, to set variables that libgomp reads before main, and changes the process: signals, limits,
// threads of OpenMP. Prints errors and returns the exit status: 0, 1, 2, or 128 and the number of
// the signal that stopped a run.

// `argv` as main got it, null-terminated; `version` is what --version prints.
int run_program(int argc, char** argv, const char* version);

}  // namespace ofsdp::cli
