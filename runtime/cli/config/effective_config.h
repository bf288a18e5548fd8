// The configuration that a run has in effect, as a YAML file that `--config` reads again from any
// folder. The run prints it when it starts and keeps it next to each checkpoint's manifest.
//
// Takes the parsed options and the number of ranks. Paths become absolute. The batch is the global
// one, so that another number of ranks trains the same. The ranks are those of the run, whoever
// started them. Reads the current folder. Errors: none.
#pragma once

#include <string>

#include "runtime/options.h"

namespace ofsdp::cli {

std::string effective_config(const Options& options, int world);

// "lr 0.1": each setting that differs from its default, in the order of the option table. Long
// values lose their middle.
std::vector<std::string> changed_settings(const Options& options);

}  // namespace ofsdp::cli
