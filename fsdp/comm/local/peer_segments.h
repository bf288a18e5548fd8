// Shared memory between the ranks on a host: an equally large segment for each rank, which the
// others read; read-only segments that the first rank fills for all; and memory in common, in which
// every rank writes a part.
//
// The ledger counts this rank's Regions, and this rank's part in the common memory, but not the
// mapped peer segments. Errors: Region's and PeerWait's, and kFault with both numbers if ranks ask
// for different sizes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/local/peer_wait.h"
#include "fsdp/comm/local/rendezvous.h"
#include "kernels/base/status.h"
#include "kernels/core/memory.h"

namespace ofsdp::fsdp {

// Another rank's memfd, mapped for reading.
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
  // Collective. REQUIRES: not called before.
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
  // Returns the segment at `place`, which may be this rank's.
  const std::byte* of(int place) const { return bases_[static_cast<size_t>(place)]; }

 private:
  Region own_;
  Region common_;
  std::vector<ReadMapping> peers_;
  std::vector<const std::byte*> bases_;
  std::vector<Region> filled_;       // filled by the first rank
  std::vector<ReadMapping> shared_;  // mapped by the others
};

}  // namespace ofsdp::fsdp
