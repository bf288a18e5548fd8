// Shared memory of this rank and its peers on the host: one segment a rank, of the same size on
// all, which the others read; read-only segments that the host's first rank fills for everyone;
// and memory in common, in which every rank writes its part.
//
// Ownership: owns its own Regions (counted in the ledger; of what is in common its part) and the
// mappings of the peers' (which are theirs, so not counted). Threads: one; `peer` any. Errors:
// those of Region and PeerWait, and kFault with both numbers when ranks ask for different sizes.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/local/rendezvous.h"
#include "kernels/base/reject.h"
#include "kernels/base/status.h"
#include "kernels/core/memory.h"

namespace ofsdp::fsdp {

// Somebody else's memfd, mapped for reading.
class ReadMapping {
 public:
  ReadMapping() = default;
  ReadMapping(ReadMapping&& other) noexcept { *this = std::move(other); }

  ReadMapping& operator=(ReadMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  ~ReadMapping() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
  }

  static Result<ReadMapping> map(const UniqueFd& fd, size_t bytes, int owner) {
    const size_t whole = region_bytes(bytes);
    struct stat found {};
    OFSDP_FAULT_IF(fstat(fd.get(), &found) != 0 || static_cast<size_t>(found.st_size) != whole,
                   "rank {} shares {} bytes, expected {}", owner, found.st_size, whole);
    // Populated: the peers have touched these pages, and no step is to pay for page faults.
    void* data = mmap(nullptr, whole, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    OFSDP_FAULT_IF(data == MAP_FAILED, "cannot map {} bytes of rank {}: {}", whole, owner,
                   std::strerror(errno));
    ReadMapping mapping;
    mapping.data_ = static_cast<const std::byte*>(data);
    mapping.bytes_ = whole;
    return mapping;
  }

  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class PeerSegments {
 public:
  // Collective; once.
  Status allocate(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger, size_t bytes) {
    OFSDP_CHECK(bases_.empty(), "allocate_shared is called once");
    const std::vector<int>& ranks = links.self().ranks;
    bases_.resize(ranks.size());
    peers_.resize(ranks.size());
    if (bytes == 0) return {};
    OFSDP_ASSIGN_OR_RETURN(
        own_, Region::map(ledger, bytes, Region::Sharing::kShared, "shards and gradients"));
    OFSDP_ASSIGN_OR_RETURN(const std::vector<UniqueFd> fds,
                           links.all_gather_fds(own_.fd(), wait, {"exchange of segments", -1, 0}));
    for (size_t p = 0; p < ranks.size(); ++p) {
      if (static_cast<int>(p) == links.self().place) {
        bases_[p] = own_.data();
        continue;
      }
      OFSDP_ASSIGN_OR_RETURN(peers_[p], ReadMapping::map(fds[p], bytes, ranks[p]));
      bases_[p] = peers_[p].data();
    }
    return {};
  }

  // Collective; as Communicator::allocate_common.
  Result<std::byte*> allocate_common(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger,
                                     size_t bytes) {
    OFSDP_CHECK(common_.data() == nullptr, "allocate_common is called once");
    if (bytes == 0) return nullptr;
    constexpr const char* kName = "parameters of the host's ranks";
    const CollectiveSite site{"exchange of common memory", -1, 0};
    const size_t whole = static_cast<size_t>(links.self().here()) * region_bytes(bytes);
    if (links.self().place != 0) {
      OFSDP_ASSIGN_OR_RETURN(const UniqueFd fd, links.broadcast_fd(-1, wait, site));
      OFSDP_ASSIGN_OR_RETURN(common_, Region::attach(ledger, fd.get(), whole, bytes, kName));
      return common_.data();
    }
    OFSDP_ASSIGN_OR_RETURN(common_, Region::map_common(ledger, whole, bytes, kName));
    OFSDP_ASSIGN_OR_RETURN([[maybe_unused]] const UniqueFd none,
                           links.broadcast_fd(common_.fd(), wait, site));
    return common_.data();
  }

  // Collective; as Communicator::share_from_rank0.
  Result<std::span<const std::byte>> share(PeerLinks& links, const PeerWait& wait,
                                           MemoryLedger& ledger, size_t bytes,
                                           const std::string& name,
                                           Status (*fill)(void*, std::span<std::byte>),
                                           void* context) {
    if (bytes == 0) return std::span<const std::byte>();
    const std::string site_name = "sharing of " + name;
    const CollectiveSite site{site_name.c_str(), -1, 0};
    if (links.self().place != 0) {
      OFSDP_ASSIGN_OR_RETURN(const UniqueFd fd, links.broadcast_fd(-1, wait, site));
      OFSDP_ASSIGN_OR_RETURN(ReadMapping mapping,
                             ReadMapping::map(fd, bytes, links.self().ranks[0]));
      shared_.push_back(std::move(mapping));
      return std::span(shared_.back().data(), bytes);
    }
    OFSDP_ASSIGN_OR_RETURN(
        Region region, Region::map(ledger, bytes, Region::Sharing::kShared, name.substr(0, 200)));
    OFSDP_RETURN_IF_ERROR(fill(context, {region.data(), bytes}));
    OFSDP_ASSIGN_OR_RETURN([[maybe_unused]] const UniqueFd none,
                           links.broadcast_fd(region.fd(), wait, site));
    filled_.push_back(std::move(region));
    return std::span<const std::byte>(filled_.back().data(), bytes);
  }

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
