// Accelerate's `fsdp_config` (FSDP1 and FSDP2, told apart by `fsdp_version`, absent 1) and
// `parallelism_config`. Takes those keys of the file where they are there, and `num_processes` for
// the check that the mesh has so many ranks. Ownership, threads, errors: as ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

// `mixed_precision` and its like: parameters, reduction and buffers have one dtype.
Status set_precision(ForeignFile& file, const ForeignKey& key, const std::string& dtype);

Status read_accelerate_fsdp(ForeignFile& file, const std::optional<ForeignKey>& fsdp,
                            const std::optional<ForeignKey>& parallelism,
                            const std::optional<ForeignKey>& processes);

// Accelerate names modules by a regular expression that must match whole names ("lm_head", "a|b",
// ".*\.norm"); --ignore takes globs of parameter names. Returns nothing for an expression that no
// glob can say.
std::optional<std::vector<std::string>> ignored_globs(std::string_view expression);

}  // namespace ofsdp::cli
