// The one list of commands: usage, operands, completions and the manual page come from here.
//
// Ownership: static texts. Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/options.h"

namespace ofsdp::cli {

struct CommandEntry {
  Command command;
  std::string_view operand;   // what must follow; empty: nothing
  std::string_view synopsis;  // after "fsdp-run "
  std::string_view text;      // what it does, in lines; empty: for scripts, not in the help
};

// The first is the one that has no name on the command line.
std::span<const CommandEntry> command_table();

bool takes_options_of_a_run(Command command);

// The lines of all commands for the help.
std::string help_of_commands();

}  // namespace ofsdp::cli
