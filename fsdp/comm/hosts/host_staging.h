// HostStaging: what a rank of several hosts keeps in its segment after the bytes it was asked for:
// shards that it has fetched for its host, sums of other hosts that wait for their reduction, and
// sums on their way out. Pieces of kPieceBytes.
//
// Peers of the host read the fetched shards; what each slot holds is in the control page.
//
// Ownership: views of the rank's segments. Threads: see each user.
#pragma once

#include <algorithm>
#include <atomic>

#include "fsdp/comm/hosts/host_link.h"
#include "fsdp/comm/hosts/host_map.h"
#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/peer_segments.h"
#include "fsdp/comm/local/peer_wait.h"

namespace ofsdp::fsdp {

struct HostParts {
  const HostMap* map = nullptr;
  const ControlPage* page = nullptr;
  const PeerWait* wait = nullptr;
  HostLink* link = nullptr;
  const PeerSegments* segments = nullptr;

  const std::byte* segment(int rank) const {
    return segments->of(map->place_of[static_cast<size_t>(rank)]);
  }
};

class HostStaging {
 public:
  static constexpr int kFetched = kFetchedSlots;
  static constexpr int kOutgoing = 8;
  HostStaging() = default;
  // `user`: bytes that the segment was asked for, whole pages.
  HostStaging(size_t user, int hosts) : user_(user), hosts_(hosts) {}

  // Two of each other host at least: one that is summed and one that comes.
  static int incoming(int hosts) { return std::max(48, 4 * (hosts - 1)); }
  static size_t bytes(int hosts) {
    return kPieceBytes * static_cast<size_t>(kFetched + kOutgoing + incoming(hosts));
  }

  const std::byte* fetched(const std::byte* segment, int index) const {
    return piece(segment, index);
  }
  const std::byte* outgoing(const std::byte* segment) const { return piece(segment, kFetched); }
  const std::byte* incoming_piece(const std::byte* segment, int index) const {
    return piece(segment, kFetched + kOutgoing + index);
  }
  int incoming() const { return incoming(hosts_); }

 private:
  const std::byte* piece(const std::byte* segment, int index) const {
    return segment + user_ + static_cast<size_t>(index) * kPieceBytes;
  }
  size_t user_ = 0;
  int hosts_ = 1;
};

}  // namespace ofsdp::fsdp
