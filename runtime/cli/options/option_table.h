// The one list of options: every flag, YAML key, help line and line of the printed configuration
// comes from here. Three files hold its three parts.
//
// Also here: which options mean nothing beside which others (`--momentum` beside `--optimizer
// adamw`), which is an error when somebody said them and left out when the configuration is
// printed.
//
// Ownership: option_table() makes a new value. Threads: any. Errors: none of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/options/option_entry.h"

namespace ofsdp::cli {

std::vector<OptionEntry> option_table();

std::vector<OptionEntry> sharding_entries();  // strategy, units, precision, memory, launch
std::vector<OptionEntry> training_entries();  // loss, parameters, optimizer, schedule
std::vector<OptionEntry> run_entries();       // batch, steps, data, checkpoints, files

// The entry called `name` (without dashes), or null.
const OptionEntry* find_entry(const std::vector<OptionEntry>& table, std::string_view name);
std::vector<std::string> entry_names(const std::vector<OptionEntry>& table);

// Whether option `name` does nothing because of another one, such as momentum beside adamw.
struct NoEffect {
  std::string beside;  // "--optimizer adamw"; empty when the option has an effect
  bool strict =
      false;  // an error even when said with its default value, as PyTorch's arguments are
};
NoEffect no_effect(const Options& options, std::string_view name);

// What PyTorch takes for an optimizer of this kind where nothing is said.
OptimizerOptions optimizer_defaults(OptimizerKind kind);

// The effective configuration as YAML that --config reads again: one line an option, those without
// an effect left out. Once the batch is settled it is said by global_batch_size and grad_accum (with
// slices: batch_size), from which another number of ranks computes the third.
std::string describe(const Options& options);

std::string help_text();

}  // namespace ofsdp::cli
