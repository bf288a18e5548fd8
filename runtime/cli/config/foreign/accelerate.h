// Reads the keys that `accelerate config` writes, as in Hugging Face Accelerate 1.15 and earlier
// versions that wrote YAML: the top level, `fsdp_config`, `parallelism_config` and
// `deepspeed_config`. Absent keys take our defaults. docs/configuration.md has the table of keys.
// Sets options and adds warnings in the OptionReader of the file; errors as in ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

// Accelerate's `fsdp_config` (FSDP1, or FSDP2 if `fsdp_version` is 2) and `parallelism_config`.
// Reads these keys if present, and `num_processes` to check that the mesh has as many ranks.

// `mixed_precision` and related keys: parameters, reduction and buffers have one dtype.
Status set_precision(ForeignFile& file, const ForeignKey& key, const std::string& dtype);

Status read_accelerate_fsdp(ForeignFile& file, const std::optional<ForeignKey>& fsdp,
                            const std::optional<ForeignKey>& parallelism,
                            const std::optional<ForeignKey>& processes);

// Accelerate names modules by a regular expression that must match whole names ("lm_head", "a|b",
// ".*\.norm"); --ignore takes globs of parameter names. Returns none if no glob is equivalent.
std::optional<std::vector<std::string>> ignored_globs(std::string_view expression);

bool is_accelerate_key(std::string_view name);
std::vector<std::string> accelerate_key_names();

// `keys`: keys of the top level for which is_accelerate_key is true.
Status read_accelerate(ForeignFile& file, const std::vector<ForeignKey>& keys);

}  // namespace ofsdp::cli
