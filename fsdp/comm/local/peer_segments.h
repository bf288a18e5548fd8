// Shared memory of this rank and its peers on the host: one segment a rank, of the same size on
// all, which the others read; read-only segments that the host's first rank fills for everyone;
// and memory in common, in which every rank writes its part.
//
// Ownership: owns its own Regions (counted in the ledger; of what is in common its part) and the
// mappings of the peers' (which are theirs, so not counted). Threads: one; `peer` any. Errors:
// those of Region and PeerWait, and kFault with both numbers when ranks ask for different sizes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/local/rendezvous.h"
#include "kernels/base/status.h"
#include "kernels/core/memory.h"

namespace ofsdp::fsdp {

// Somebody else's memfd, mapped for reading.
class ReadMapping {
 public:
  ReadMapping() = default;
  ReadMapping(ReadMapping&& other) noexcept { *this = std::move(other); }
  ReadMapping& operator=(ReadMapping&& other) noexcept;
  ~ReadMapping();

  static Result<ReadMapping> map(const UniqueFd& fd, size_t bytes, int owner);
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class PeerSegments {
 public:
  // Collective; once.
  Status allocate(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger, size_t bytes);
  // Collective; as Communicator::allocate_common.
  Result<std::byte*> allocate_common(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger,
                                     size_t bytes);
  // Collective; as Communicator::share_from_rank0.
  Result<std::span<const std::byte>> share(PeerLinks& links, const PeerWait& wait,
                                           MemoryLedger& ledger, size_t bytes,
                                           const std::string& name,
                                           Status (*fill)(void*, std::span<std::byte>),
                                           void* context);

  std::byte* own() const { return own_.data(); }
  size_t bytes() const { return own_.bytes(); }
  // Every segment of the host by place, this rank's included.
  const std::byte* of(int place) const { return bases_[static_cast<size_t>(place)]; }

 private:
  Region own_;
  Region common_;
  std::vector<ReadMapping> peers_;
  std::vector<const std::byte*> bases_;
  std::vector<Region> filled_;       // the first rank's shared bytes
  std::vector<ReadMapping> shared_;  // the others' view of them
};

}  // namespace ofsdp::fsdp
