// Memory that the ranks on one host share, in three forms:
//
//   segments  one per rank, with parameter shards and gradient slots. The rank writes one, the
//             other ranks map it for reading
//   common    one array in which every rank writes a part and reads all (allocate_common)
//   shared    read-only data that the first rank on the host fills for all (share_from_rank0)
//
// The communicator owns a PeerSegments. The memory ledger counts this rank's segment, the data that
// this rank has filled, and this rank's part of the common array; it does not count the mappings of
// other ranks' memory. Errors: Region's if memory runs out, PeerWait's if a rank does not come, and
// kFault with both sizes if ranks ask for different sizes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/local/peer_wait.h"
#include "fsdp/comm/local/rendezvous.h"
#include "kernels/base/status.h"
#include "kernels/core/memory.h"

namespace ofsdp::fsdp {

// Another rank's memory file, mapped for reading until the destructor.
class ReadMapping {
 public:
  ReadMapping() = default;
  ReadMapping(ReadMapping&& other) noexcept { *this = std::move(other); }
  ReadMapping& operator=(ReadMapping&& other) noexcept;
  ~ReadMapping();

  // `bytes`: expected; none: any. `owner`: the rank that made the file, for messages.
  static Result<ReadMapping> map(const UniqueFd& fd, std::optional<size_t> bytes, int owner);
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class PeerSegments {
 public:
  // Makes this rank's segment and maps the others'. `ahead`: bytes before the segments, in whole
  // pages, in each rank's file. `equal`: all ask for as many bytes. Collective, called once per
  // run.
  Status allocate(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger, size_t ahead,
                  size_t bytes, bool equal);
  // Collective; see Communicator::allocate_common.
  Result<std::byte*> allocate_common(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger,
                                     size_t whole, size_t part);
  // Collective; see Communicator::share_from_rank0.
  Result<std::span<const std::byte>> share(PeerLinks& links, const PeerWait& wait,
                                           MemoryLedger& ledger, size_t bytes,
                                           const std::string& name,
                                           Status (*fill)(void*, std::span<std::byte>),
                                           void* context);

  std::byte* own() const { return own_.data() == nullptr ? nullptr : own_.data() + ahead_; }
  // Returns the segment of the rank at `place` (LocalRank), which may be this rank.
  const std::byte* of(int place) const { return bases_[static_cast<size_t>(place)]; }
  size_t bytes_of(int place) const { return bytes_[static_cast<size_t>(place)]; }

 private:
  Region own_;
  Region common_;
  std::vector<ReadMapping> peers_;
  std::vector<const std::byte*> bases_;
  std::vector<size_t> bytes_;
  size_t ahead_ = 0;
  std::vector<Region> filled_;       // shared data, on the first rank
  std::vector<ReadMapping> shared_;  // shared data, on the other ranks
};

}  // namespace ofsdp::fsdp
