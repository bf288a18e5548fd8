// Completions of the command line for shells, written from the tables of commands and options: what
// a user loads with `source <(fsdp-run completion bash)`.
//
// Threads: any. Errors: kInput for a shell that is none of the three.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/cli/options/option_entry.h"

namespace ofsdp::cli {

// `shell`: bash, zsh or fish.
Result<std::string> completion_script(const std::string& shell);

// The values that a shell offers after an option.
struct ValueOffer {
  std::vector<std::string> words;  // names that the option accepts
  bool files = false;
};
ValueOffer offered_values(const OptionEntry& entry);

}  // namespace ofsdp::cli
