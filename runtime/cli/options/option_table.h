// The one list of options: every flag, YAML key, help line and line of the printed configuration
// comes from here. Files named *_entries.cpp hold its parts.
//
// Also here: which options mean nothing with which others (`--momentum` with `--optimizer adamw`).
// Giving one is an error, and the printed configuration leaves it out (dependent_options.cpp).
//
// Ownership: option_table() makes a new value. Threads: any. Errors: none of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/options/option_entry.h"

namespace ofsdp::cli {

std::vector<OptionEntry> option_table();

std::vector<OptionEntry> sharding_entries();   // strategy, units, precision, memory, launch
std::vector<OptionEntry> loss_entries();       // and the teacher
std::vector<OptionEntry> trained_entries();    // parameters, training_info
std::vector<OptionEntry> optimizer_entries();  // its groups, the average of weights, clipping
std::vector<OptionEntry> schedule_entries();   // of the learning rate
std::vector<OptionEntry> edit_entries();       // adapters, head, copies
std::vector<OptionEntry> run_entries();        // batch, steps, data, checkpoints, files

// The entry called `name` (without dashes), or null; `find_key` knows those of YAML files alone.
const OptionEntry* find_entry(const std::vector<OptionEntry>& table, std::string_view name);
const OptionEntry* find_key(const std::vector<OptionEntry>& table, std::string_view name);
std::vector<std::string> entry_names(const std::vector<OptionEntry>& table);  // of the keys
std::string yaml_key(std::string name);                                       // '_' for '-'

// Returns whether option `name` does nothing because of another one, such as momentum with adamw.
struct NoEffect {
  std::string beside = {};  // "--optimizer adamw"; empty when the option has an effect
  bool strict = false;      // an error even with the default value, as PyTorch's arguments are
};
NoEffect no_effect(const Options& options, std::string_view name);

// Sets PyTorch's defaults of this kind of optimizer where an option is not `given`.
void take_defaults_unless(OptimizerOptions& optimizer,
                          const std::function<bool(const char*)>& given);

// The effective configuration as YAML that --config reads again: one line an option, those without
// an effect left out. `sizes` of a known world: the batch is given by global_batch_size and
// grad_accum (with slices: batch_size), from which another number of ranks computes the third.
std::string describe(const Options& options, const std::optional<BatchSizes>& sizes = {});

// Whether it says something about a run, and is no flag of one command alone.
bool is_of_a_run(const OptionEntry& entry);

// The lines of every option of a run, the default value first.
std::string help_of_options();

}  // namespace ofsdp::cli
