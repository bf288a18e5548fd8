#include "fsdp/comm/local/local_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "fsdp/comm/local/peer_monitor.h"
#include "fsdp/comm/local/peer_segments.h"
#include "fsdp/comm/local/peer_wait.h"
#include "fsdp/comm/local/rendezvous.h"
#include "fsdp/comm/rank_sum.h"

namespace ofsdp::fsdp {
namespace {

// With a core for every rank a peer is on its way and worth a short wait; else it needs this core.
constexpr std::chrono::microseconds kSpin{10};
constexpr std::chrono::microseconds kSpinCrowded{1};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(const RankIdentity& identity, Meeting meeting, std::chrono::seconds timeout)
      : rank_(identity.rank),
        size_(identity.world),
        own_lifeline_(std::move(meeting.own_lifeline)),
        page_(std::move(meeting.page)),
        links_(std::move(meeting.links)),
        wait_(&page_, rank_, timeout, meeting.cores >= size_ ? kSpin : kSpinCrowded),
        slots_(static_cast<size_t>(size_)) {}

  Status watch(std::vector<UniqueFd> lifelines) {
    OFSDP_ASSIGN_OR_RETURN(monitor_,
                           PeerMonitor::start(&page_, links_.seat(), std::move(lifelines)));
    return {};
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "local"; }

  Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes) override {
    OFSDP_RETURN_IF_ERROR(segments_.allocate(links_, wait_, ledger, bytes));
    return segments_.own();
  }

  int ranks_in_common() const override { return size_; }
  Result<std::byte*> allocate_common(MemoryLedger& ledger, size_t bytes) override {
    return segments_.allocate_common(links_, wait_, ledger, bytes);
  }

  Status all_gather(const RankGroup& group, const ShardSource& source, std::byte* dst,
                    DType dst_dtype, const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    if (source.numel == 0) return {};
    const size_t bytes = static_cast<size_t>(source.numel) * dtype_size(dst_dtype);
    for (int k = 0; k < group.count; ++k) {
      const int index = ring(group, k);
      convert_elements(segments_.of(group.rank(index)) + source.offset + index * source.stride,
                       source.dtype, dst + index * bytes, dst_dtype, source.numel);
    }
    return {};
  }

  Status acquire(int channel, const RankGroup& group, const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    return wait_for_all(channel, group, &ChannelCounts::done, mine(channel).done, site);
  }

  void post(int channel, const RankGroup&, const SlotSource&) override {
    ChannelCounts& counts = mine(channel);
    page_.publish(counts.posted, counts.posted + 1, rank_);
  }

  Status reduce_scatter(int channel, const RankGroup& group, const SlotSource& slot, BlockSink sink,
                        const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    OFSDP_RETURN_IF_ERROR(
        wait_for_all(channel, group, &ChannelCounts::posted, mine(channel).posted, site));
    sum_own_span(group, slot, sink);
    page_.publish(mine(channel).done, mine(channel).done + 1, rank_);
    return {};
  }

  // Each rank sums its own span over all slots and puts it into its own slot, where nobody else
  // reads or writes that span; then everybody copies the other spans from their owners.
  Status all_reduce(int channel, const RankGroup& group, const SlotSource& slot,
                    const CollectiveSite& site) override {
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    ChannelCounts& counts = mine(channel);
    OFSDP_RETURN_IF_ERROR(
        wait_for_all(channel, group, &ChannelCounts::posted, counts.posted, site));
    float* own = reinterpret_cast<float*>(segments_.own() + slot.offset) +
                 group.index_of(rank_) * slot.numel;
    auto put = [own](int64_t begin, std::span<float> block) {
      std::memcpy(own + begin, block.data(), block.size_bytes());
    };
    sum_own_span(group, slot, put);
    page_.publish(counts.summed, counts.summed + 1, rank_);
    OFSDP_RETURN_IF_ERROR(copy_summed_spans(channel, group, slot, site));
    page_.publish(counts.done, counts.done + 1, rank_);
    return {};
  }

  // Two payloads take turns: a rank that begins exchange k + 2 has seen all begin k + 1, so all
  // have read k.
  Status exchange(std::span<const double> mine, std::span<double> all,
                  const CollectiveSite& site) override {
    OFSDP_CHECK(mine.size() <= kExchangeMost && all.size() == mine.size() * slots_.size(),
                "{} doubles of {} ranks into {}", mine.size(), size_, all.size());
    OFSDP_RETURN_IF_ERROR(wait_.check(site));
    RankState& me = page_.rank(rank_);
    const uint64_t turn = me.sequence.load(std::memory_order_relaxed) + 1;
    std::copy(mine.begin(), mine.end(), me.payload[turn % 2]);
    page_.publish(me.sequence, turn, rank_);
    for (int r = 0; r < size_; ++r) {
      const RankState& peer = page_.rank(r);
      OFSDP_RETURN_IF_ERROR(wait_.until(peer.sequence, turn, r, site));
      std::copy_n(peer.payload[turn % 2], mine.size(),
                  all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r) * mine.size()));
    }
    return {};
  }

  Status barrier(const CollectiveSite& site) override { return exchange({}, {}, site); }
  Status check(const CollectiveSite& site) const override { return wait_.check(site); }

  Result<std::span<const std::byte>> share_from_rank0(
      MemoryLedger& ledger, size_t bytes, const std::string& name,
      Status (*fill)(void* context, std::span<std::byte> bytes), void* context) override {
    return segments_.share(links_, wait_, ledger, bytes, name, fill, context);
  }

  bool fail(const Status& status) override {
    if (status.kind() == ErrorKind::kPeer) return false;
    return page_.claim_failure(rank_, status.kind() == ErrorKind::kInput ? 2 : 1);
  }

  int exit_status() const override { return page_.exit_status(); }
  int64_t waited() const override { return wait_.waited().count(); }

  void leave() override {
    monitor_->stop();
    page_.note_leave(rank_);
  }

 private:
  // Ranks begin with different peers, so that they do not all read the same memory at once.
  int ring(const RankGroup& group, int k) const {
    return (group.index_of(rank_) + k) % group.count;
  }

  ChannelCounts& mine(int channel) const {
    OFSDP_CHECK(channel >= 0 && channel < kMostChannels, "channel {}", channel);
    return page_.channel(channel, rank_);
  }

  Status wait_for_all(int channel, const RankGroup& group,
                      std::atomic<uint64_t> ChannelCounts::*counter, uint64_t target,
                      const CollectiveSite& site) const {
    for (int k = 1; k < group.count; ++k) {
      const int peer = group.rank(ring(group, k));
      OFSDP_RETURN_IF_ERROR(wait_.until(page_.channel(channel, peer).*counter, target, peer, site));
    }
    return {};
  }

  void sum_own_span(const RankGroup& group, const SlotSource& slot, BlockSink sink) {
    const auto sources = std::span(slots_).first(static_cast<size_t>(group.count));
    const size_t width = dtype_size(slot.dtype);
    const int64_t first = slot.first >= 0 ? slot.first : group.index_of(rank_) * slot.numel;
    const size_t span = slot.offset + static_cast<size_t>(first) * width;
    for (int64_t begin = 0; begin < slot.numel; begin += kReduceBlock) {
      const int64_t count = std::min(kReduceBlock, slot.numel - begin);
      for (int i = 0; i < group.count; ++i) {
        sources[static_cast<size_t>(i)] =
            segments_.of(group.rank(i)) + span + static_cast<size_t>(begin) * width;
      }
      sum_in_rank_order(sources, slot.dtype, count, block_.data(),
                        slot.onto != nullptr ? slot.onto + begin : nullptr);
      sink(begin, {block_.data(), static_cast<size_t>(count)});
    }
  }

  Status copy_summed_spans(int channel, const RankGroup& group, const SlotSource& slot,
                           const CollectiveSite& site) {
    const size_t bytes = static_cast<size_t>(slot.numel) * sizeof(float);
    for (int k = 1; k < group.count; ++k) {
      const int index = ring(group, k), peer = group.rank(index);
      const std::atomic<uint64_t>& theirs = page_.channel(channel, peer).summed;
      OFSDP_RETURN_IF_ERROR(wait_.until(theirs, mine(channel).summed, peer, site));
      const size_t span = slot.offset + static_cast<size_t>(index) * bytes;
      std::memcpy(segments_.own() + span, segments_.of(peer) + span, bytes);
    }
    return {};
  }

  const int rank_;
  const int size_;
  UniqueFd own_lifeline_;  // closed after the monitor and the page
  ControlPage page_;
  PeerLinks links_;
  PeerWait wait_;
  PeerSegments segments_;
  std::unique_ptr<PeerMonitor> monitor_;
  std::vector<const std::byte*> slots_;  // of the block being summed, by rank
  alignas(kTensorAlignment) std::array<float, kReduceBlock> block_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> connect_local(const RankIdentity& identity,
                                                    std::chrono::seconds timeout) {
  if (identity.world == 1) return make_self_communicator();
  OFSDP_ASSIGN_OR_RETURN(Meeting meeting, meet(only_host(identity), timeout));
  std::vector<UniqueFd> lifelines = std::move(meeting.lifelines);
  auto communicator = std::make_unique<LocalCommunicator>(identity, std::move(meeting), timeout);
  OFSDP_RETURN_IF_ERROR(communicator->watch(std::move(lifelines)));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace ofsdp::fsdp
