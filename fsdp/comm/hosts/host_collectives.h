// Collectives across hosts. Each rank's segment ends with a staging area (HostStaging) in pieces of
// kPieceBytes. It holds shards fetched for the ranks on this host, which read them there; sums from
// other hosts that wait to be reduced; and outgoing sums. The control page says which piece each
// slot with a fetched shard holds.
//
// All-gather: every byte comes to a host once. The group's ranks on the host take turns to fetch
// remote shard pieces into their staging, and all read the pieces there.
//
// Reductions: a rank owns a span of the sum. As soon as it has posted, and as far as the staging
// has room, it asks every other host for that host's sum over the span; when it reduces, it adds
// the sums in host order:
//
//   sum = (sum of host 0 + sum of host 1) + ..., each in rank order, all in float32
//
// A host with one rank in the group sends the gradients as they are, other hosts a float32 sum.
// all_reduce then fetches other hosts' finished spans into the slots, each once for the host.
//
// Counters (ControlPage), besides posted, summed and done: `served` of the group's first member on
// a host counts elements in the host's slots that other hosts have read; `pulled` counts the rounds
// for which a rank has fetched remote spans.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_link.h"
#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/peer_segments.h"
#include "fsdp/comm/local/peer_wait.h"
#include "fsdp/plan/unit.h"

namespace ofsdp::fsdp {

// A group as one rank sees it.
struct GroupView {
  struct Host {
    int host = 0;
    int server = 0;            // answers this rank; 0 for this host
    std::vector<int> members;  // in rank order
  };
  RankGroup group;
  std::vector<int> here;    // members on this host, in rank order
  size_t own = 0;           // this rank's index in `here`
  std::vector<Host> hosts;  // hosts with members, in order, this one included
  std::vector<int> remote;  // members elsewhere, host by host
  int others = 0;           // how many other hosts have members
  uint64_t gathers = 0;     // how many gathers the members on this host have made together

  // Returns the k-th member on this host, counted from this rank. So ranks begin with different
  // peers and do not all read the same memory at once.
  int peer(size_t k) const { return here[(own + k) % here.size()]; }

  static GroupView make(const HostMap& map, const RankGroup& group);
};

// The communicator parts that collectives use. Does not own them.
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
  // `user`: bytes that the segment was asked for, in whole pages.
  HostStaging(size_t user, int hosts) : user_(user), hosts_(hosts) {}

  // At least two for each other host: one is summed while the next arrives.
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
  size_t user_;
  int hosts_;
};

class HostGather {
 public:
  HostGather(const HostParts& parts, const HostStaging& staging)
      : parts_(parts), staging_(staging) {}

  // Writes the remote shards to `dst`.
  Status gather(GroupView& view, const ShardSource& source, std::byte* dst, DType dst_dtype,
                const CollectiveSite& site);

 private:
  struct Plan;
  Status straight(const Plan& plan, const CollectiveSite& site);
  Status together(const Plan& plan, const CollectiveSite& site);
  void fetch(const Plan& plan, int64_t piece) const;

  HostParts parts_;
  HostStaging staging_;
  std::atomic<uint64_t> arrived_{0};  // pieces fetched straight to their destination
  uint64_t expected_ = 0;
};

// A communicator's acquire, post, reduce_scatter and all_reduce, on one host or several.
class HostReductions {
 public:
  HostReductions(const HostParts& parts, const HostStaging& staging);

  Status acquire(int channel, const GroupView& view, const CollectiveSite& site);
  void post(int channel, const GroupView& view, const SlotSource& slot);
  Status reduce_scatter(int channel, const GroupView& view, const SlotSource& slot, BlockSink sink,
                        const CollectiveSite& site);
  Status all_reduce(int channel, const GroupView& view, const SlotSource& slot,
                    const CollectiveSite& site);

 private:
  // A round between post and reduce.
  struct Posted {
    int channel = -1;
    const GroupView* view = nullptr;
    SlotSource slot;
    int64_t pieces = 0;
    int64_t asked = 0;         // pieces requested so far
    std::vector<int> buffers;  // for the requested pieces, in order: one for each remote host
    size_t first = 0;          // the first index in `buffers` that is still in use
  };

  int rank() const { return parts_.map->rank; }
  std::byte* own() const { return parts_.segments->own(); }
  ChannelCounts& counts(int channel, int rank) const;
  ChannelCounts& mine(int channel) const { return counts(channel, rank()); }
  LinkRequest make_request(LinkKind kind, int channel, const RankGroup& group) const;
  Status wait_for(int channel, const GroupView& view, std::atomic<uint64_t> ChannelCounts::*counter,
                  uint64_t target, const CollectiveSite& site) const;
  Posted& posted(int channel);
  bool ask_next(Posted& round, size_t keep);
  void ask_ahead();
  void release(Posted& round);
  Status sum_span(Posted& round, BlockSink sink, const CollectiveSite& site);
  Status sum_piece(Posted& round, int64_t piece, BlockSink sink, const CollectiveSite& site);
  void sum_block(const Posted& round, int64_t begin, int64_t in_piece, int64_t count);
  Status pull_summed(int channel, const GroupView& view, const SlotSource& slot,
                     const CollectiveSite& site);
  Status copy_from_peers(int channel, const GroupView& view, const SlotSource& slot,
                         const CollectiveSite& site);

  HostParts parts_;
  HostStaging staging_;
  size_t others_;  // other hosts
  // The open rounds in post order, then spare ones.
  std::vector<std::unique_ptr<Posted>> rounds_;
  size_t open_ = 0;                                   // how many rounds are open
  std::vector<int> free_;                             // buffers
  std::unique_ptr<std::atomic<uint64_t>[]> arrived_;  // by buffer: the request that has arrived
  std::vector<uint64_t> wanted_;                      // by buffer: the last request
  uint64_t requests_ = 0;
  std::vector<uint64_t> to_serve_;   // by channel: elements that others read, over all rounds
  std::atomic<uint64_t> pulled_{0};  // pieces from finished spans that have arrived
  uint64_t pulls_ = 0;               // ... and that were requested
  std::vector<const std::byte*> sources_;
  alignas(kTensorAlignment) std::array<float, kReduceBlock> block_, partial_;
};

}  // namespace ofsdp::fsdp
