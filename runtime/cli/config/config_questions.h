// fsdp-run config: asks a person for the options of a run, and writes the answers as a YAML file
// that `--config` reads.
//
// On a terminal choices are made with the arrow keys; otherwise every question is a line, choices
// are numbered, an empty line (and the end of the input) takes the default, a wrong answer is asked
// again. Defaults are the options of the command line: `fsdp-run config --strategy zero1 -o FILE`.
//
// Ownership: none. Threads: the main one. Errors: kInput when the person ends it, when the input
// ends after a wrong answer, when the file cannot be written. The file appears whole or not at all.
#pragma once

#include <iosfwd>

#include "runtime/options.h"

namespace ofsdp::cli {

// `terminal`: choices with arrow keys on the standard descriptors; `in` has the lines.
Status ask_configuration(const Options& options, std::istream& in, bool terminal);

}  // namespace ofsdp::cli
