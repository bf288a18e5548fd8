// Reductions across hosts. A rank asks every other host for that host's sum of its own span as soon
// as it has posted, as far as its staging has room, and adds them in host order when it reduces:
//
//   sum = (host 0's + host 1's) + ..., each host's in rank order, all in float32
//
// A host with one rank of the group sends its gradients as they are, others their float32 sums.
//
// all_reduce then fetches the finished spans of other hosts, each once a host, into the slots.
//
// Counters (ControlPage), besides posted, summed and done: `served` of the first member on the host
// counts elements of the host's slots that other hosts have read; `pulled` the rounds whose remote
// spans are in that rank's slot.
//
// Ownership: views of the rank's segments. Threads: the rank's one. Errors: those of PeerWait.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_staging.h"

namespace ofsdp::fsdp {

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
  // A posted round, between post and reduce.
  struct Posted {
    int channel = -1;
    const GroupView* view = nullptr;
    SlotSource slot;
    int64_t pieces = 0;
    int64_t asked = 0;  // pieces that are under way or there
    int64_t taken = 0;
    std::vector<int> buffers;  // of the pieces from taken to asked, one a remote host
    size_t first = 0;          // of `buffers` that is in use
  };

  int rank() const { return parts_.map->rank; }
  std::byte* own() const { return parts_.segments->own(); }  // this rank's segment
  ChannelCounts& counts(int channel, int rank) const;
  ChannelCounts& mine(int channel) const { return counts(channel, rank()); }
  LinkRequest request_of(LinkKind kind, int channel, const RankGroup& group) const;
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
  size_t others_;                                // hosts but this one
  std::vector<std::unique_ptr<Posted>> rounds_;  // in the order of their posts; then spare ones
  size_t open_ = 0;                              // of rounds_
  std::vector<int> free_;                        // buffers
  std::unique_ptr<std::atomic<uint64_t>[]> arrived_;  // by buffer: which request is there
  std::vector<uint64_t> wanted_;                      // by buffer
  uint64_t requests_ = 0;
  std::vector<uint64_t> to_serve_;   // by channel: elements that others have to read, ever
  std::atomic<uint64_t> pulled_{0};  // pieces of finished spans
  uint64_t pulls_ = 0;
  std::vector<const std::byte*> sources_;
  alignas(kTensorAlignment) std::array<float, kReduceBlock> block_, partial_;
};

}  // namespace ofsdp::fsdp
