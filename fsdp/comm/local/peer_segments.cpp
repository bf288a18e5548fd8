#include "fsdp/comm/local/peer_segments.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {

ReadMapping& ReadMapping::operator=(ReadMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ReadMapping::~ReadMapping() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
}

Result<ReadMapping> ReadMapping::map(const UniqueFd& fd, std::optional<size_t> bytes, int owner) {
  struct stat found {};
  const bool known = fstat(fd.get(), &found) == 0;
  const size_t whole = bytes ? region_bytes(*bytes) : static_cast<size_t>(found.st_size);
  OFSDP_FAULT_IF(!known || static_cast<size_t>(found.st_size) != whole,
                 "rank {} shares {} bytes, expected {}", owner, found.st_size, whole);
  // Populated, so that no step pays for page faults; the peer has touched the pages already.
  void* data = mmap(nullptr, whole, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  OFSDP_FAULT_IF(data == MAP_FAILED, "cannot map {} bytes of rank {}: {}", whole, owner,
                 std::strerror(errno));
  ReadMapping mapping;
  mapping.data_ = static_cast<const std::byte*>(data);
  mapping.bytes_ = whole;
  return mapping;
}

Status PeerSegments::allocate(PeerLinks& links, const PeerWait& wait, MemoryLedger& ledger,
                              size_t ahead, size_t bytes, bool equal) {
  OFSDP_CHECK(bases_.empty(), "allocate_shared is called once");
  const std::vector<int>& ranks = links.self().ranks;
  bases_.resize(ranks.size());
  bytes_.resize(ranks.size());
  peers_.resize(ranks.size());
  ahead_ = ahead;
  const size_t whole = ahead + bytes;
  if (whole == 0) return {};
  OFSDP_ASSIGN_OR_RETURN(
      own_, Region::map(ledger, whole, Region::Sharing::kShared, "shards and gradients"));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<UniqueFd> fds,
                         links.all_gather_fds(own_.fd(), wait, {"exchange of segments", -1, 0}));
  for (size_t p = 0; p < ranks.size(); ++p) {
    if (static_cast<int>(p) == links.self().place) {
      bases_[p] = own();
      bytes_[p] = own_.bytes() - ahead;
      continue;
    }
    const std::optional<size_t> expected = equal ? std::optional(whole) : std::nullopt;
    OFSDP_ASSIGN_OR_RETURN(peers_[p], ReadMapping::map(fds[p], expected, ranks[p]));
    OFSDP_FAULT_IF(peers_[p].bytes() < ahead, "rank {} shares {} bytes, expected at least {}",
                   ranks[p], peers_[p].bytes(), ahead);
    bases_[p] = peers_[p].data() + ahead;
    bytes_[p] = peers_[p].bytes() - ahead;
  }
  return {};
}

Result<std::byte*> PeerSegments::allocate_common(PeerLinks& links, const PeerWait& wait,
                                                 MemoryLedger& ledger, size_t whole, size_t part) {
  OFSDP_CHECK(common_.data() == nullptr, "allocate_common is called once");
  if (whole == 0) return nullptr;
  constexpr const char* kName = "parameters of the host's ranks";
  const CollectiveSite site{"exchange of common memory", -1, 0};
  if (links.self().place != 0) {
    OFSDP_ASSIGN_OR_RETURN(const UniqueFd fd, links.broadcast_fd(-1, wait, site));
    OFSDP_ASSIGN_OR_RETURN(common_, Region::attach(ledger, fd.get(), whole, part, kName));
    return common_.data();
  }
  OFSDP_ASSIGN_OR_RETURN(common_, Region::map_common(ledger, whole, part, kName));
  OFSDP_ASSIGN_OR_RETURN([[maybe_unused]] const UniqueFd none,
                         links.broadcast_fd(common_.fd(), wait, site));
  return common_.data();
}

Result<std::span<const std::byte>> PeerSegments::share(PeerLinks& links, const PeerWait& wait,
                                                       MemoryLedger& ledger, size_t bytes,
                                                       const std::string& name,
                                                       Status (*fill)(void*, std::span<std::byte>),
                                                       void* context) {
  if (bytes == 0) return std::span<const std::byte>();
  const std::string site_name = "sharing of " + name;
  const CollectiveSite site{site_name.c_str(), -1, 0};
  if (links.self().place != 0) {
    OFSDP_ASSIGN_OR_RETURN(const UniqueFd fd, links.broadcast_fd(-1, wait, site));
    OFSDP_ASSIGN_OR_RETURN(ReadMapping mapping, ReadMapping::map(fd, bytes, links.self().ranks[0]));
    shared_.push_back(std::move(mapping));
    return std::span(shared_.back().data(), bytes);
  }
  OFSDP_ASSIGN_OR_RETURN(Region region,
                         Region::map(ledger, bytes, Region::Sharing::kShared, name.substr(0, 200)));
  OFSDP_RETURN_IF_ERROR(fill(context, {region.data(), bytes}));
  OFSDP_ASSIGN_OR_RETURN([[maybe_unused]] const UniqueFd none,
                         links.broadcast_fd(region.fd(), wait, site));
  filled_.push_back(std::move(region));
  return std::span<const std::byte>(filled_.back().data(), bytes);
}

}  // namespace ofsdp::fsdp
