// The keys that `accelerate config` writes, as they are in Hugging Face Accelerate 1.15 and in the
// versions before it that wrote YAML: the top level, `fsdp_config`, `parallelism_config` and
// `deepspeed_config`. Absent keys take our defaults. docs/configuration.md has the table of keys.
//
// Takes the keys of the file's top level that are Accelerate's; gives options to the file's
// OptionReader, warnings with them. Ownership, threads, errors: as ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

bool is_accelerate_key(std::string_view name);
std::vector<std::string> accelerate_key_names();

// `keys`: those of the top level for which is_accelerate_key holds.
Status read_accelerate(ForeignFile& file, const std::vector<ForeignKey>& keys);

}  // namespace ofsdp::cli
