// The command line of fsdp-run, and with it the files it names: flags beat `--config FILE`, which
// beats MODEL.yaml next to MODEL.onnx (same stem), which beats the defaults. Reads those files, no
// others.
//
// A table-driven reader of its own instead of CLI11: flags, YAML keys, help and printed
// configuration share one list (option_table.h), and an error is one line with flag, expected and
// found.
// `--name value`, `--name=value`; a switch stands alone or with on/off; `--` ends the options. Of a
// flag that is given twice the last one counts, except for repeated options.
//
// Ownership: values. Threads: one (the environment is read). Errors: kInput, one line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::cli {

struct ParsedCommand {
  Options options;  // with `help` or `version` alone: print that to stdout, exit 0, do nothing else
  ModelOrigin origin;
  std::vector<std::string> warnings;  // for stderr, once a run
  bool unasked = false;               // of `accelerate config default`: every default is taken
};

std::string help_text();

// argv[0] is the program. OMP_NUM_THREADS is read from the environment.
Result<ParsedCommand> parse_command_line(int argc, const char* const* argv);

// The same without the program's name and without the environment, for tests.
Result<ParsedCommand> parse_command(const std::vector<std::string>& arguments,
                                    const std::optional<std::string>& omp_num_threads);

}  // namespace ofsdp::cli
