// The configuration that a run has in effect, as a YAML file that `--config` reads again from any
// folder: printed when the run starts and kept beside each checkpoint's manifest.
//
// Takes options that the command line has settled and the number of ranks; paths become absolute, the
// batch is the global one (so that another number of ranks trains the same), the ranks are those of
// the run, whoever started them. Ownership: values. Threads: any; the current folder is read.
// Errors: none.
#pragma once

#include <string>

#include "runtime/options.h"

namespace ofsdp::cli {

std::string effective_config(Options options, int world);

}  // namespace ofsdp::cli
