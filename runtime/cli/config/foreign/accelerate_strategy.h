// Which strategy Accelerate's keys mean: FSDP1's names and numbers, FSDP2's true and false, and the
// mesh of `parallelism_config` (replicas x shards is hybrid_shard). The keys are filled in by whoever
// reads the sections. Ownership, threads, errors: as ForeignFile; keys that disagree are both named.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

struct FsdpStrategy {
  std::optional<ForeignKey> version, sharding, reshard, replicate, shard, processes;

  bool second() const { return version && version->is("2"); }
  Status settle(ForeignFile& file) const;

 private:
  Result<std::string> resharding(ForeignFile& file) const;
  Status settle_mesh(ForeignFile& file, std::optional<std::string> said) const;
  Status check_world(int64_t replicas, int64_t shards) const;
};

// The position of the value among `names`, or of the number (from 1) that older files have, with a
// warning.
Result<size_t> numbered(ForeignFile& file, const ForeignKey& key,
                        const std::vector<std::string>& names);

}  // namespace ofsdp::cli
