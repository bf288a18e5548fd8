// Accelerate's `deepspeed_config`: its own short keys (`zero_stage`, `offload_optimizer_device`), the
// name of a DeepSpeed file, or DeepSpeed's own keys written in place. Ownership, threads, errors: as
// ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

Status read_accelerate_deepspeed(ForeignFile& file, const ForeignKey& section);

// `deepspeed_config_file`: relative to the file it stands in, or to where the command is run.
Status read_deepspeed_file(ForeignFile& file, const ForeignKey& key);

}  // namespace ofsdp::cli
