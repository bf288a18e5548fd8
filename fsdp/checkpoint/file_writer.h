// Writes one planned file of a checkpoint: headers and slices at their offsets, checksums taken on
// the way, and all of it brought to disk.
//
// Memory: nothing beyond the caller's; a block is checked and written while it is in the cache, and
// the disk is set to work behind it. Ownership: none. Threads: one a file; `cancelled` may be set
// by any and ends the write early. Errors: kFault naming the file.
#pragma once

#include <atomic>

#include "fsdp/checkpoint/shard_file.h"

namespace ofsdp::fsdp {

// What the manifest says of the file. It may be there already and be written by other ranks too, at
// other offsets.
Result<CheckpointFile> write_planned_file(const std::string& folder, const PlannedFile& planned,
                                          const std::atomic<bool>& cancelled);

}  // namespace ofsdp::fsdp
