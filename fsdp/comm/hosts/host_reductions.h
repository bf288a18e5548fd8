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

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_staging.h"
#include "fsdp/comm/rank_sum.h"

namespace ofsdp::fsdp {

class HostReductions {
 public:
  HostReductions(const HostParts& parts, const HostStaging& staging)
      : parts_(parts), staging_(staging), others_(parts.map->hosts.size() - 1) {
    const auto buffers = static_cast<size_t>(staging.incoming());
    for (int b = 0; b < staging.incoming(); ++b) free_.push_back(b);
    arrived_ = std::make_unique<std::atomic<uint64_t>[]>(buffers);
    wanted_.resize(buffers);
    to_serve_.resize(kMostChannels);
    sources_.resize(parts.map->here().size());
  }

  Status acquire(int channel, const GroupView& view, const CollectiveSite& site) {
    const uint64_t done = mine(channel).done;
    OFSDP_RETURN_IF_ERROR(wait_for(channel, view, &ChannelCounts::done, done, site));
    if (view.others == 0) return {};
    const std::atomic<uint64_t>& served = counts(channel, view.here[0]).served;
    const uint64_t target = to_serve_[static_cast<size_t>(channel)];
    const auto read = [&] { return served.load() >= target; };
    return parts_.wait->until_ready(read, view.here[0], view.remote[0], site);
  }

  void post(int channel, const GroupView& view, const SlotSource& slot) {
    ChannelCounts& mine = this->mine(channel);
    parts_.page->publish(mine.posted, mine.posted + 1, rank());
    if (view.others > 0) parts_.link->nudge();
    if (open_ == rounds_.size()) rounds_.push_back(std::make_unique<Posted>());
    Posted& round = *rounds_[open_++];
    round.channel = channel;
    round.view = &view;
    round.slot = slot;
    round.pieces = view.others == 0 ? 0 : (slot.numel + kPieceElements - 1) / kPieceElements;
    round.asked = round.taken = 0;
    round.buffers.clear();
    round.first = 0;
    ask_ahead();
  }

  Status reduce_scatter(int channel, const GroupView& view, const SlotSource& slot, BlockSink sink,
                        const CollectiveSite& site) {
    ChannelCounts& mine = this->mine(channel);
    Posted& round = posted(channel);
    OFSDP_CHECK(round.slot.numel == slot.numel, "{} elements posted, {} reduced", round.slot.numel,
                slot.numel);
    OFSDP_CHECK(slot.onto == nullptr || view.others == 0, "a sum of hosts onto another");
    round.slot = slot;
    OFSDP_RETURN_IF_ERROR(wait_for(channel, view, &ChannelCounts::posted, mine.posted, site));
    OFSDP_RETURN_IF_ERROR(sum_span(round, sink, site));
    release(round);
    parts_.page->publish(mine.done, mine.done + 1, rank());
    return {};
  }

  // As among the ranks of one host: each sums its own span into its own slot, then takes those of
  // the others.
  Status all_reduce(int channel, const GroupView& view, const SlotSource& slot,
                    const CollectiveSite& site) {
    ChannelCounts& mine = this->mine(channel);
    float* sums =
        reinterpret_cast<float*>(own() + slot.offset) + view.group.index_of(rank()) * slot.numel;
    auto put = [sums](int64_t begin, std::span<float> block) {
      std::memcpy(sums + begin, block.data(), block.size_bytes());
    };
    Posted& round = posted(channel);
    OFSDP_RETURN_IF_ERROR(wait_for(channel, view, &ChannelCounts::posted, mine.posted, site));
    OFSDP_RETURN_IF_ERROR(sum_span(round, put, site));
    release(round);
    parts_.page->publish(mine.summed, mine.posted, rank());
    if (view.others > 0) parts_.link->nudge();
    to_serve_[static_cast<size_t>(channel)] +=
        static_cast<uint64_t>(view.others) * view.here.size() * static_cast<uint64_t>(slot.numel);
    OFSDP_RETURN_IF_ERROR(pull_summed(channel, view, slot, site));
    parts_.page->publish(mine.pulled, mine.posted, rank());
    OFSDP_RETURN_IF_ERROR(copy_from_peers(channel, view, slot, site));
    parts_.page->publish(mine.done, mine.done + 1, rank());
    return {};
  }

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
  ChannelCounts& counts(int channel, int rank) const {
    OFSDP_CHECK(channel >= 0 && channel < kMostChannels, "channel {}", channel);
    return parts_.page->channel(channel, rank);
  }

  ChannelCounts& mine(int channel) const { return counts(channel, rank()); }

  // The common part of all requests for a round of a group's channel.
  LinkRequest request_of(LinkKind kind, int channel, const RankGroup& group) const {
    LinkRequest request;
    request.header.kind = kind;
    request.header.round = mine(channel).posted;
    request.header.channel = channel;
    request.header.first = group.first;
    request.header.count = group.count;
    request.header.stride = group.stride;
    return request;
  }

  Status wait_for(int channel, const GroupView& view, std::atomic<uint64_t> ChannelCounts::*counter,
                  uint64_t target, const CollectiveSite& site) const {
    for (size_t k = 1; k < view.here.size(); ++k) {
      const int peer = view.peer(k);
      OFSDP_RETURN_IF_ERROR(parts_.wait->until(counts(channel, peer).*counter, target, peer, site));
    }
    return {};
  }

  Posted& posted(int channel) {
    for (size_t i = 0; i < open_; ++i) {
      if (rounds_[i]->channel == channel) return *rounds_[i];
    }
    OFSDP_CHECK(false, "channel {} is reduced before it is posted", channel);
  }

  // Asks all other hosts for the next piece. False: nothing left, or no room.
  bool ask_next(Posted& round, size_t keep) {
    const auto hosts = static_cast<size_t>(round.view->others);
    if (round.asked == round.pieces || free_.size() < hosts + keep) return false;
    const RankGroup& group = round.view->group;
    const size_t width = dtype_size(round.slot.dtype);
    const int64_t begin = round.asked * kPieceElements;
    const int64_t count = std::min(kPieceElements, round.slot.numel - begin);
    const int64_t in_slot = group.index_of(rank()) * round.slot.numel + begin;
    for (const GroupView::Host& host : round.view->hosts) {
      if (host.host == parts_.map->host()) continue;
      const int buffer = free_.back();
      free_.pop_back();
      round.buffers.push_back(buffer);
      LinkRequest request = request_of(LinkKind::kPartial, round.channel, group);
      request.server = host.server;
      request.header.dtype = static_cast<uint16_t>(round.slot.dtype);
      request.header.offset = round.slot.offset + static_cast<size_t>(in_slot) * width;
      request.header.bytes = static_cast<size_t>(count) * width;
      request.header.numel = count;
      request.dst = const_cast<std::byte*>(staging_.incoming_piece(own(), buffer));
      request.bytes =
          static_cast<size_t>(count) * (host.members.size() == 1 ? width : sizeof(float));
      request.done = &arrived_[static_cast<size_t>(buffer)];
      request.value = wanted_[static_cast<size_t>(buffer)] = ++requests_;
      parts_.link->request(request);
    }
    ++round.asked;
    return true;
  }

  // The oldest round first. What is kept free lets the round that is reduced go on whatever the
  // others hold.
  void ask_ahead() {
    for (size_t i = 0; i < open_; ++i) {
      while (ask_next(*rounds_[i], others_)) {
      }
    }
  }

  void release(Posted& round) {
    const auto at = std::find_if(rounds_.begin(), rounds_.begin() + static_cast<long>(open_),
                                 [&](const auto& r) { return r.get() == &round; });
    std::rotate(at, at + 1, rounds_.begin() + static_cast<long>(open_));
    --open_;
  }

  Status sum_span(Posted& round, BlockSink sink, const CollectiveSite& site) {
    const int64_t pieces = (round.slot.numel + kPieceElements - 1) / kPieceElements;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      OFSDP_RETURN_IF_ERROR(sum_piece(round, piece, sink, site));
      if (round.view->others > 0) ask_ahead();
    }
    to_serve_[static_cast<size_t>(round.channel)] +=
        round.view->remote.size() * static_cast<uint64_t>(round.slot.numel);
    return {};
  }

  Status sum_piece(Posted& round, int64_t piece, BlockSink sink, const CollectiveSite& site) {
    const bool remote = round.view->others > 0;
    if (remote && round.asked == piece) OFSDP_CHECK(ask_next(round, 0), "no room for a piece");
    size_t next = round.first;
    for (const GroupView::Host& host : round.view->hosts) {
      if (host.host == parts_.map->host()) continue;
      const auto buffer = static_cast<size_t>(round.buffers[next++]);
      const auto there = [&] { return arrived_[buffer].load() == wanted_[buffer]; };
      OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(there, rank(), host.server, site));
    }
    const int64_t first = piece * kPieceElements;
    const int64_t end = std::min(round.slot.numel, first + kPieceElements);
    for (int64_t begin = first; begin < end; begin += kReduceBlock) {
      const int64_t count = std::min(kReduceBlock, end - begin);
      sum_block(round, begin, begin - first, count);
      sink(begin, {block_.data(), static_cast<size_t>(count)});
    }
    for (; round.first < next; ++round.first) free_.push_back(round.buffers[round.first]);
    return {};
  }

  // One block: the hosts' sums, this host's own made here.
  void sum_block(const Posted& round, int64_t begin, int64_t in_piece, int64_t count) {
    const GroupView& view = *round.view;
    const DType dtype = round.slot.dtype;
    const size_t width = dtype_size(dtype);
    bool first = true;
    size_t buffer = round.first;
    for (const GroupView::Host& host : view.hosts) {
      if (host.host == parts_.map->host()) {
        // Other hosts sum the span that the index gives.
        const bool given = round.slot.first >= 0 && view.others == 0;
        const int64_t index = view.group.index_of(rank());
        const int64_t in_slot = (given ? round.slot.first : index * round.slot.numel) + begin;
        const auto sources = std::span(sources_).first(view.here.size());
        for (size_t i = 0; i < view.here.size(); ++i) {
          sources[i] = parts_.segment(view.here[i]) + round.slot.offset +
                       static_cast<size_t>(in_slot) * width;
        }
        sum_in_rank_order(sources, dtype, count, first ? block_.data() : partial_.data(),
                          round.slot.onto != nullptr ? round.slot.onto + begin : nullptr);
        if (!first) {
          add_elements(reinterpret_cast<std::byte*>(partial_.data()), DType::kFloat32,
                       block_.data(), count);
        }
      } else {
        const DType sent = host.members.size() == 1 ? dtype : DType::kFloat32;
        const std::byte* src = staging_.incoming_piece(own(), round.buffers[buffer++]) +
                               static_cast<size_t>(in_piece) * dtype_size(sent);
        if (first) {
          convert_elements(src, sent, reinterpret_cast<std::byte*>(block_.data()), DType::kFloat32,
                           count);
        } else {
          add_elements(src, sent, block_.data(), count);
        }
      }
      first = false;
    }
  }

  // This rank's share of the remote spans.
  Status pull_summed(int channel, const GroupView& view, const SlotSource& slot,
                     const CollectiveSite& site) {
    const size_t bytes = static_cast<size_t>(slot.numel) * sizeof(float);
    int server = rank();
    for (size_t i = 0; i < view.remote.size(); ++i) {
      const int owner = view.remote[i];
      if (view.here[i % view.here.size()] != rank()) continue;
      server = parts_.map->server(parts_.map->host_of[static_cast<size_t>(owner)], rank());
      for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
        LinkRequest request = request_of(LinkKind::kSummed, channel, view.group);
        request.server = server;
        request.header.rank = owner;
        request.header.offset =
            slot.offset + static_cast<size_t>(view.group.index_of(owner)) * bytes + begin;
        request.header.bytes = request.bytes = std::min(kPieceBytes, bytes - begin);
        request.dst = own() + request.header.offset;
        request.done = &pulled_;
        parts_.link->request(request);
        ++pulls_;
      }
    }
    const auto all = [&] { return pulled_.load() >= pulls_; };
    return parts_.wait->until_ready(all, rank(), server, site);
  }

  Status copy_from_peers(int channel, const GroupView& view, const SlotSource& slot,
                         const CollectiveSite& site) {
    const size_t bytes = static_cast<size_t>(slot.numel) * sizeof(float);
    const uint64_t round = mine(channel).posted;
    const auto copy = [&](int owner, int from) {
      const size_t span = slot.offset + static_cast<size_t>(view.group.index_of(owner)) * bytes;
      std::memcpy(own() + span, parts_.segment(from) + span, bytes);
    };
    const auto turn = [&] {  // hosts have read what is written over
      if (view.others > 0) parts_.link->take_turn();
    };
    for (size_t k = 1; k < view.here.size(); ++k) {
      const int peer = view.peer(k);
      OFSDP_RETURN_IF_ERROR(parts_.wait->until(counts(channel, peer).summed, round, peer, site));
      turn();
      copy(peer, peer);
    }
    for (size_t i = 0; i < view.remote.size(); ++i) {
      const int from = view.here[i % view.here.size()];
      if (from == rank()) continue;
      OFSDP_RETURN_IF_ERROR(parts_.wait->until(counts(channel, from).pulled, round, from, site));
      turn();
      copy(view.remote[i], from);
    }
    return {};
  }

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
