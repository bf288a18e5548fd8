// All-gather and reductions of a group of ranks, on one host or several (HostGather,
// HostReductions). The communicator (fsdp/connect.cpp) owns both objects and calls them from the
// thread that runs the schedule.
//
// Memory: each rank has one shared memory segment, which the ranks on the host map, at equal
// offsets. It holds parameter shards and gradient slots; a slot is where a rank leaves its gradient
// of a unit, for others to read. Between hosts, a HostLink (one per rank, with a thread) requests
// pieces of at most kPieceBytes (256 KiB) from ranks on other hosts. Before the segment lies a
// staging area for such pieces (HostStaging).
//
// All-gather: each byte comes to a host once. The group's ranks on the host take turns to fetch
// pieces of remote shards into fetch slots in their staging areas, and all copy the pieces from
// there. The control page, the shared memory with all counters, says which piece a fetch slot
// holds.
//
// Reductions: each rank owns a span, a range of the slot's elements, and computes the span's sum
// over the group. As soon as it has posted its own slot, it requests from each other host that
// host's sum over the span, as many pieces as the staging has room for. When it reduces, it adds
// them in host order:
//
//   sum = (sum of host 0 + sum of host 1) + ..., each in rank order, all in float32
//
// A host with one rank in the group sends its gradients in the slot's dtype, other hosts send
// float32 sums. all_reduce then fetches the finished spans of other hosts into the slots, each span
// once per host.
//
// A round is one reduction on a channel: a number for reductions by one group through one slot,
// which the compiler gives. Each rank has these counters per channel in the control page:
//
//   posted   rounds in which the rank has filled its slot
//   summed   rounds in which it has finished its span (all_reduce)
//   pulled   rounds in which it has fetched its share of remote spans (all_reduce)
//   done     rounds in which it no longer reads others' slots
//   served   elements of this host's slots that other hosts have read; only in the counters of the
//            group's first rank on the host
//
// Errors are PeerWait's: kPeer if another rank has reported an error; kFault if a rank died, ended
// too early or did not come within the timeout. The caller passes them to Communicator::fail, which
// ends the other ranks' waits.
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

// A group as one of its ranks sees it. Hosts are numbered by their first rank.
struct GroupView {
  struct Host {
    int host = 0;
    int server = 0;  // the rank there that answers this rank's requests; unused for this host
    std::vector<int> members;  // the group's ranks there, in rank order
  };
  RankGroup group;
  std::vector<int> here;    // the group's ranks on this host, in rank order
  size_t own = 0;           // this rank's index in `here`
  std::vector<Host> hosts;  // all hosts with ranks of the group, in order, this host included
  std::vector<int> remote;  // the group's ranks on other hosts, host by host
  int others = 0;           // hosts in `hosts` other than this one
  uint64_t gathers = 0;     // gathers in which all ranks of `here` took part

  // Returns the k-th rank of `here`, counted from this rank: ranks begin with different peers, so
  // that they do not all read the same memory at once.
  int peer(size_t k) const { return here[(own + k) % here.size()]; }

  static GroupView make(const HostMap& map, const RankGroup& group);
};

// Names a piece in a gather, by the words in the fetch slot that holds it.
//
// [Note: whose piece] A fetching rank clears `filled` before it writes `group`, and the link sets
// `filled` afterwards. So a group that is read between two equal values of `filled` is theirs.
struct PieceName {
  uint64_t group = 0;   // first, count and stride: 21 bits each
  uint64_t filled = 0;  // the highest bit, 40 bits of the gather's number, 23 of the piece's

  // The fields of `filled` repeat, but by then the slot has been filled anew: a slot holds another
  // piece after 16 of each fetching rank.
  static PieceName make(const RankGroup& group, uint64_t gathers, int64_t piece);
  bool is_in(const FetchedSlot& slot) const {
    return slot.filled.load() == filled && slot.group.load() == group &&
           slot.filled.load() == filled;
  }
};

// The parts of the communicator that collectives use. The communicator owns them and outlives this.
struct HostParts {
  const HostMap* map = nullptr;
  const ControlPage* page = nullptr;
  const PeerWait* wait = nullptr;
  HostLink* link = nullptr;
  const PeerSegments* segments = nullptr;

  // Returns the segment of a rank on this host.
  const std::byte* segment(int rank) const {
    return segments->of(map->place_of[static_cast<size_t>(rank)]);
  }
};

// The layout of the staging area, in the bytes before a segment: kFetched fetch slots for an
// all-gather, kOutgoing buffers in which the link builds sums that it sends, and incoming()
// buffers for other hosts' sums. Each has kPieceBytes, but incoming ones of many hosts have less.
// Only the segment's own rank writes there.
class HostStaging {
 public:
  static constexpr int kFetched = kFetchedSlots;
  static constexpr int kOutgoing = 8;
  explicit HostStaging(int hosts) : hosts_(hosts) {}

  // Two per other host suffice: one is summed while the next arrives. More let later rounds request
  // ahead.
  static int incoming(int hosts) { return std::max(48, 4 * (hosts - 1)); }
  // Returns the bytes of an incoming buffer: half as many, and half of that, until all buffers
  // together have 12 MiB; at least a block of a sum.
  static size_t incoming_bytes(int hosts) {
    constexpr size_t kMost = 48 * kPieceBytes;
    constexpr size_t kLeast = static_cast<size_t>(kReduceBlock) * sizeof(float);
    size_t each = kPieceBytes;
    while (each > kLeast && each * static_cast<size_t>(incoming(hosts)) > kMost) each /= 2;
    return each;
  }
  static size_t bytes(int hosts) {
    return kPieceBytes * static_cast<size_t>(kFetched + kOutgoing) +
           incoming_bytes(hosts) * static_cast<size_t>(incoming(hosts));
  }

  // Return addresses in `segment`: a fetch slot, the first outgoing buffer, an incoming buffer.
  const std::byte* fetched(const std::byte* segment, int index) const {
    return piece(segment, index);
  }
  const std::byte* outgoing(const std::byte* segment) const { return piece(segment, kFetched); }
  const std::byte* incoming_piece(const std::byte* segment, int index) const {
    return piece(segment, kFetched + kOutgoing) + static_cast<size_t>(index) * incoming_bytes_;
  }
  int incoming() const { return incoming(hosts_); }
  // Returns the float32 elements that an incoming buffer holds.
  int64_t incoming_elements() const {
    return static_cast<int64_t>(incoming_bytes_ / sizeof(float));
  }

 private:
  const std::byte* piece(const std::byte* segment, int index) const {
    return segment - bytes(hosts_) + static_cast<size_t>(index) * kPieceBytes;
  }
  int hosts_;
  size_t incoming_bytes_ = incoming_bytes(hosts_);
};

class HostGather {
 public:
  HostGather(const HostParts& parts, const HostStaging& staging);

  // Writes the shards of the group's ranks on other hosts to their places in `dst`, converted to
  // dst_dtype; the communicator has copied this host's shards. Counts view.gathers. All ranks of
  // the group must call it, or only this rank with site.alone. If it fails, call
  // HostLink::abandon_shards before `dst` is used again.
  Status gather(GroupView& view, const ShardSource& source, std::byte* dst, DType dst_dtype,
                const CollectiveSite& site);

 private:
  struct Plan;
  // For a single fetcher without conversion: pieces go from the network into `dst`.
  Status fetch_direct(const Plan& plan, const CollectiveSite& site);
  // Otherwise: pieces go into the fetchers' staging areas, from which each rank converts them.
  Status fetch_shared(const Plan& plan, const CollectiveSite& site);
  // Requests a piece into this rank's fetch slot.
  void fetch(const Plan& plan, int64_t piece) const;

  HostParts parts_;
  HostStaging staging_;
  std::vector<int64_t> ends_;  // scratch: one number per rank on other hosts
  // Pieces that fetch_direct has received and requested so far.
  std::atomic<uint64_t> arrived_{0};
  uint64_t expected_ = 0;
};

// A communicator's acquire, post, reduce_scatter and all_reduce; communicator.h defines them. Per
// round a rank calls acquire (before it writes its slot), post, and then one of the two reductions.
// Several channels may have a round open, each channel only one. The view must live until the
// reduction returns.
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
  // An open round: posted, but not reduced yet.
  struct Round {
    int channel = -1;
    const GroupView* view = nullptr;
    SlotSource slot;
    int64_t pieces = 0;        // pieces of this rank's span; 0 if the group is on one host
    int64_t requested = 0;     // pieces requested so far, each from every other host
    std::vector<int> buffers;  // per requested piece, in order: one incoming buffer per other host
    size_t first = 0;          // buffers[first] is the first that still holds or awaits a piece
  };

  int rank() const { return parts_.map->rank; }
  std::byte* own() const { return parts_.segments->own(); }
  int64_t first_of_span(const Round& round) const;
  int64_t pieces_of(int64_t numel) const {
    return (numel + staging_.incoming_elements() - 1) / staging_.incoming_elements();
  }
  ChannelCounts& counts(int channel, int rank) const;
  ChannelCounts& mine(int channel) const { return counts(channel, rank()); }
  LinkRequest make_request(LinkKind kind, int channel, const RankGroup& group) const;
  // Blocks until the other ranks of `view.here` have `counter` at `target`.
  Status wait_for(int channel, const GroupView& view, std::atomic<uint64_t> ChannelCounts::*counter,
                  uint64_t target, const CollectiveSite& site) const;
  // Returns the channel's open round. REQUIRES: there is one.
  Round& open_round(int channel);
  // Requests the round's next piece from all other hosts. Returns false if all pieces are
  // requested, or if fewer than `keep` incoming buffers would stay free.
  bool request_next(Round& round, size_t keep);
  // Requests pieces for all open rounds, the oldest first, as long as there are buffers.
  void request_ahead();
  void close_round(Round& round);
  // Give `sink` the sum over this rank's whole span, and over one piece of it.
  Status sum_span(Round& round, BlockSink sink, const CollectiveSite& site);
  Status sum_piece(Round& round, int64_t piece, BlockSink sink, const CollectiveSite& site);
  // Computes the sum of one block in block_. The block starts at element `begin` of the span, which
  // is element `in_piece` of its piece.
  void sum_block(const Round& round, int64_t begin, int64_t in_piece, int64_t count);
  // The end of all_reduce: fetches this rank's share of the other hosts' finished spans, then
  // copies the remaining spans from the slots of the other ranks on this host.
  Status pull_summed(int channel, const GroupView& view, const SlotSource& slot,
                     const CollectiveSite& site);
  Status copy_from_peers(int channel, const GroupView& view, const SlotSource& slot,
                         const CollectiveSite& site);

  HostParts parts_;
  HostStaging staging_;
  size_t others_;  // how many other hosts the run has
  // rounds_[0 .. open_ - 1] are open, in the order of their posts; the rest are kept for reuse.
  std::vector<std::unique_ptr<Round>> rounds_;
  size_t open_ = 0;
  std::vector<int> free_;  // incoming buffers that no round uses
  // Per incoming buffer: the number of the last request that has arrived, and that was made.
  std::unique_ptr<std::atomic<uint64_t>[]> arrived_;
  std::vector<uint64_t> wanted_;
  uint64_t requests_ = 0;  // the number of the latest request
  // Per channel: how many elements other hosts will have read after all rounds so far. `served`
  // reaches it once this host's slots may be overwritten.
  std::vector<uint64_t> to_serve_;
  // pull_summed: pieces of finished spans that have arrived, and that were requested, so far.
  std::atomic<uint64_t> summed_arrived_{0};
  uint64_t summed_requested_ = 0;
  std::vector<const std::byte*> sources_;  // scratch: one address per rank on this host
  // Scratch: the sum so far, and this host's sum.
  alignas(kTensorAlignment) std::array<float, kReduceBlock> block_, partial_;
};

}  // namespace ofsdp::fsdp
