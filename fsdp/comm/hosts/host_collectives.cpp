#include "fsdp/comm/hosts/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

namespace ofsdp::fsdp {

GroupView GroupView::make(const HostMap& map, const RankGroup& group) {
  GroupView view;
  view.group = group;
  std::vector<std::vector<int>> members(map.hosts.size());
  for (int i = 0; i < group.count; ++i) {
    const int rank = group.rank(i);
    members[static_cast<size_t>(map.host_of[static_cast<size_t>(rank)])].push_back(rank);
  }
  for (size_t h = 0; h < members.size(); ++h) {
    if (members[h].empty()) continue;
    const int host = static_cast<int>(h);
    if (host == map.host()) {
      view.here = members[h];
      const auto own = std::ranges::find(view.here, map.rank);
      view.own = static_cast<size_t>(own - view.here.begin());
      view.hosts.push_back({host, 0, std::move(members[h])});
      continue;
    }
    ++view.others;
    view.remote.insert(view.remote.end(), members[h].begin(), members[h].end());
    view.hosts.push_back({host, map.server(host, map.rank), std::move(members[h])});
  }
  return view;
}

PieceName PieceName::make(const RankGroup& group, uint64_t gathers, int64_t piece) {
  constexpr int kRankBits = 21, kGatherBits = 40, kPieceBits = 23;
  static_assert(kMaxRanks < 1 << kRankBits);
  static_assert(kMaxRanks * kFetchedSlots < 1 << kPieceBits);
  const auto field = [](uint64_t value, int bits) { return value & ((uint64_t{1} << bits) - 1); };
  const auto rank = [&](int value) { return field(static_cast<uint64_t>(value), kRankBits); };
  return {rank(group.first) << 2 * kRankBits | rank(group.count) << kRankBits | rank(group.stride),
          uint64_t{1} << 63 | field(gathers, kGatherBits) << kPieceBits |
              field(static_cast<uint64_t>(piece), kPieceBits)};
}

// The remote shards, one after the other, cut into pieces. Fetcher k fetches pieces k,
// k + fetcher_count, ...
struct HostGather::Plan {
  const HostMap& map;
  const GroupView& view;
  const ShardSource& source;
  std::byte* dst;
  DType dst_dtype;
  std::span<const int> fetchers;
  std::span<int64_t> ends;  // of view.remote's shards, in pieces
  int64_t fetcher_count = std::ssize(fetchers);
  size_t width = dtype_size(source.dtype);
  int64_t pieces = 0;

  void count_pieces() {
    for (size_t i = 0; i < ends.size(); ++i) {
      const size_t bytes = static_cast<size_t>(part(view.remote[i]).numel) * width;
      ends[i] = pieces += static_cast<int64_t>((bytes + kPieceBytes - 1) / kPieceBytes);
    }
  }
  RankPart part(int rank) const { return source.of(view.group.index_of(rank)); }
  int fetcher(int64_t piece) const { return fetchers[static_cast<size_t>(piece % fetcher_count)]; }
  int slot(int64_t piece) const {
    return static_cast<int>(piece / fetcher_count % HostStaging::kFetched);
  }
  size_t shard_of(int64_t piece) const {
    return static_cast<size_t>(std::ranges::upper_bound(ends, piece) - ends.begin());
  }
  int owner(int64_t piece) const { return view.remote[shard_of(piece)]; }
  size_t begin(int64_t piece) const {
    const size_t shard = shard_of(piece);
    return static_cast<size_t>(piece - (shard == 0 ? 0 : ends[shard - 1])) * kPieceBytes;
  }
  size_t size(int64_t piece) const {
    const size_t bytes = static_cast<size_t>(part(owner(piece)).numel) * width;
    return std::min(kPieceBytes, bytes - begin(piece));
  }
  std::byte* target(int64_t piece) const {
    const auto first = static_cast<size_t>(part(owner(piece)).begin);
    return dst + (first + begin(piece) / width) * dtype_size(dst_dtype);
  }
  LinkRequest request(int64_t piece) const {
    const int rank = owner(piece);
    const size_t offset = part(rank).offset + begin(piece);
    return {
        .server = map.server(map.host_of[static_cast<size_t>(rank)], map.rank),
        .header = {.kind = LinkKind::kShard, .rank = rank, .offset = offset, .bytes = size(piece)},
        .bytes = size(piece)};
  }
};

// ---- All-gather ----

HostGather::HostGather(const HostParts& parts, const HostStaging& staging)
    : parts_(parts),
      staging_(staging),
      ends_(static_cast<size_t>(parts.map->world()) - parts.map->here().size()) {}

Status HostGather::gather(GroupView& view, const ShardSource& source, std::byte* dst,
                          DType dst_dtype, const CollectiveSite& site) {
  const std::span<const int> alone(&parts_.map->rank, 1);
  Plan plan{*parts_.map,
            view,
            source,
            dst,
            dst_dtype,
            site.alone ? alone : std::span<const int>(view.here),
            std::span(ends_).first(view.remote.size())};
  plan.count_pieces();
  if (!site.alone) ++view.gathers;
  if (plan.fetcher_count == 1 && source.dtype == dst_dtype) return fetch_direct(plan, site);
  return fetch_shared(plan, site);
}

Status HostGather::fetch_direct(const Plan& plan, const CollectiveSite& site) {
  constexpr int64_t kWindow = 64;
  const uint64_t begin = expected_;
  for (int64_t piece = 0; piece < plan.pieces; ++piece) {
    LinkRequest request = plan.request(piece);
    request.dst = plan.target(piece);
    request.done = &arrived_;
    parts_.link->request(request);
    ++expected_;
    const auto least = begin + static_cast<uint64_t>(std::max<int64_t>(0, piece + 1 - kWindow));
    const auto there = [&] { return arrived_.load() >= least; };
    OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(there, parts_.map->rank, request.server, site));
  }
  if (plan.pieces == 0) return {};
  const auto all = [&] { return arrived_.load() >= expected_; };
  return parts_.wait->until_ready(all, parts_.map->rank, plan.request(plan.pieces - 1).server,
                                  site);
}

// Every rank reads all pieces in order and fetches its own, as far ahead as it has empty fetch
// slots. The slowest reader delays the others, but there is no deadlock: all other ranks have read
// the pieces before the slowest rank's, so the slot for that piece is empty and the piece is on its
// way.
Status HostGather::fetch_shared(const Plan& plan, const CollectiveSite& site) {
  const int rank = parts_.map->rank;
  int64_t next = 0;
  while (next < plan.fetcher_count && plan.fetchers[static_cast<size_t>(next)] != rank) ++next;
  for (int64_t piece = 0; piece < plan.pieces; ++piece) {
    const int fetcher = plan.fetcher(piece);
    for (; next < plan.pieces; next += plan.fetcher_count) {
      FetchedSlot& slot = parts_.page->fetched(rank, plan.slot(next));
      const auto empty = [&slot] { return slot.pending.load() == 0; };
      if (next == piece) {
        // Waits for the readers, which are ranks on this host.
        OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(empty, rank, rank, site));
      }
      if (!empty()) break;
      fetch(plan, next);
    }
    const std::byte* segment = parts_.segment(fetcher);
    FetchedSlot& slot = parts_.page->fetched(fetcher, plan.slot(piece));
    const PieceName wanted = PieceName::make(plan.view.group, plan.view.gathers, piece);
    const auto filled = [&] { return wanted.is_in(slot); };
    const int blamed = fetcher == rank ? plan.request(piece).server : fetcher;
    OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(filled, fetcher, blamed, site));
    convert_elements(staging_.fetched(segment, plan.slot(piece)), plan.source.dtype,
                     plan.target(piece), plan.dst_dtype,
                     static_cast<int64_t>(plan.size(piece) / plan.width));
    if (slot.pending.fetch_sub(1) == 1) parts_.page->ring(fetcher);
  }
  return {};
}

// Fetches a piece into this rank's slot. REQUIRES: nobody reads the slot any more.
void HostGather::fetch(const Plan& plan, int64_t piece) const {
  const std::byte* own = parts_.segment(parts_.map->rank);
  FetchedSlot& slot = parts_.page->fetched(parts_.map->rank, plan.slot(piece));
  // A rank that gathers alone does not count `gathers`, so its names repeat the last gather's.
  const PieceName name = PieceName::make(plan.view.group, plan.view.gathers, piece);
  slot.filled.store(0);
  slot.group.store(name.group);
  slot.pending.store(static_cast<uint64_t>(plan.fetcher_count));
  LinkRequest request = plan.request(piece);
  request.dst = const_cast<std::byte*>(staging_.fetched(own, plan.slot(piece)));
  request.done = &slot.filled;
  request.value = name.filled;
  parts_.link->request(request);
}

// ---- Reductions ----

namespace {

// Returns the elements in the spans of `ranks` together.
uint64_t elements_of(const GroupView& view, const std::vector<int>& ranks, const SlotSource& slot) {
  if (slot.parts.empty()) return ranks.size() * static_cast<uint64_t>(slot.numel);
  uint64_t sum = 0;
  for (const int rank : ranks) {
    sum += static_cast<uint64_t>(slot.of(view.group.index_of(rank)).numel);
  }
  return sum;
}

}  // namespace

HostReductions::HostReductions(const HostParts& parts, const HostStaging& staging)
    : parts_(parts), staging_(staging), others_(parts.map->hosts.size() - 1) {
  const auto buffers = static_cast<size_t>(staging.incoming());
  for (int b = 0; b < staging.incoming(); ++b) free_.push_back(b);
  arrived_ = std::make_unique<std::atomic<uint64_t>[]>(buffers);
  wanted_.resize(buffers);
  to_serve_.resize(kMaxChannels);
  sources_.resize(parts.map->here().size());
}

Status HostReductions::acquire(int channel, const GroupView& view, const CollectiveSite& site) {
  const uint64_t done = mine(channel).done;
  OFSDP_RETURN_IF_ERROR(wait_for(channel, view, &ChannelCounts::done, done, site));
  if (view.others == 0) return {};
  const std::atomic<uint64_t>& served = counts(channel, view.here[0]).served;
  const uint64_t target = to_serve_[static_cast<size_t>(channel)];
  const auto read = [&] { return served.load() >= target; };
  return parts_.wait->until_ready(read, view.here[0], view.remote[0], site);
}

void HostReductions::post(int channel, const GroupView& view, const SlotSource& slot) {
  ChannelCounts& mine = this->mine(channel);
  parts_.page->publish(mine.posted, mine.posted + 1, rank());
  if (view.others > 0) parts_.link->nudge();
  if (open_ == rounds_.size()) rounds_.push_back(std::make_unique<Round>());
  Round& round = *rounds_[open_++];
  round.channel = channel;
  round.view = &view;
  round.slot = slot;
  round.pieces = view.others == 0 ? 0 : pieces_of(slot.numel);
  round.requested = 0;
  round.buffers.clear();
  round.first = 0;
  request_ahead();
}

Status HostReductions::reduce_scatter(int channel, const GroupView& view, const SlotSource& slot,
                                      BlockSink sink, const CollectiveSite& site) {
  ChannelCounts& mine = this->mine(channel);
  Round& round = open_round(channel);
  OFSDP_CHECK(round.slot.numel == slot.numel, "{} elements posted, {} reduced", round.slot.numel,
              slot.numel);
  OFSDP_CHECK(slot.onto == nullptr || view.others == 0, "a sum of hosts onto another");
  round.slot = slot;
  OFSDP_RETURN_IF_ERROR(wait_for(channel, view, &ChannelCounts::posted, mine.posted, site));
  OFSDP_RETURN_IF_ERROR(sum_span(round, sink, site));
  close_round(round);
  parts_.page->publish(mine.done, mine.done + 1, rank());
  return {};
}

// Each rank sums a span into its own slot, then copies the others' spans.
Status HostReductions::all_reduce(int channel, const GroupView& view, const SlotSource& slot,
                                  const CollectiveSite& site) {
  ChannelCounts& mine = this->mine(channel);
  float* sums =
      reinterpret_cast<float*>(own() + slot.offset) + slot.of(view.group.index_of(rank())).begin;
  auto put = [sums](int64_t begin, std::span<float> block) {
    std::memcpy(sums + begin, block.data(), block.size_bytes());
  };
  Round& round = open_round(channel);
  OFSDP_RETURN_IF_ERROR(wait_for(channel, view, &ChannelCounts::posted, mine.posted, site));
  OFSDP_RETURN_IF_ERROR(sum_span(round, put, site));
  close_round(round);
  parts_.page->publish(mine.summed, mine.posted, rank());
  if (view.others > 0) parts_.link->nudge();
  to_serve_[static_cast<size_t>(channel)] +=
      static_cast<uint64_t>(view.others) * elements_of(view, view.here, slot);
  OFSDP_RETURN_IF_ERROR(pull_summed(channel, view, slot, site));
  parts_.page->publish(mine.pulled, mine.posted, rank());
  OFSDP_RETURN_IF_ERROR(copy_from_peers(channel, view, slot, site));
  parts_.page->publish(mine.done, mine.done + 1, rank());
  return {};
}

// Returns the first element of this rank's span in the slot.
int64_t HostReductions::first_of_span(const Round& round) const {
  const SlotSource& slot = round.slot;
  return slot.first >= 0 ? slot.first : slot.of(round.view->group.index_of(rank())).begin;
}

ChannelCounts& HostReductions::counts(int channel, int rank) const {
  OFSDP_CHECK(channel >= 0 && channel < kMaxChannels, "channel {}", channel);
  return parts_.page->channel(channel, rank);
}

// Returns a request with the fields that all requests for the current round have in common.
LinkRequest HostReductions::make_request(LinkKind kind, int channel, const RankGroup& group) const {
  LinkRequest request;
  request.header.kind = kind;
  request.header.round = mine(channel).posted;
  request.header.channel = channel;
  request.header.first = group.first;
  request.header.count = group.count;
  request.header.stride = group.stride;
  return request;
}

Status HostReductions::wait_for(int channel, const GroupView& view,
                                std::atomic<uint64_t> ChannelCounts::*counter, uint64_t target,
                                const CollectiveSite& site) const {
  for (size_t k = 1; k < view.here.size(); ++k) {
    const int peer = view.peer(k);
    OFSDP_RETURN_IF_ERROR(parts_.wait->until(counts(channel, peer).*counter, target, peer, site));
  }
  return {};
}

HostReductions::Round& HostReductions::open_round(int channel) {
  for (size_t i = 0; i < open_; ++i) {
    if (rounds_[i]->channel == channel) return *rounds_[i];
  }
  OFSDP_CHECK(false, "channel {} is reduced before it is posted", channel);
}

bool HostReductions::request_next(Round& round, size_t keep) {
  const auto hosts = static_cast<size_t>(round.view->others);
  if (round.requested == round.pieces || free_.size() < hosts + keep) return false;
  const RankGroup& group = round.view->group;
  const size_t width = dtype_size(round.slot.dtype);
  const int64_t most = staging_.incoming_elements();
  const int64_t begin = round.requested * most;
  const int64_t count = std::min(most, round.slot.numel - begin);
  const int64_t in_slot = first_of_span(round) + begin;
  for (const GroupView::Host& host : round.view->hosts) {
    if (host.host == parts_.map->host()) continue;
    const int buffer = free_.back();
    free_.pop_back();
    round.buffers.push_back(buffer);
    LinkRequest request = make_request(LinkKind::kPartial, round.channel, group);
    request.server = host.server;
    request.header.dtype = static_cast<uint16_t>(round.slot.dtype);
    request.header.offset = round.slot.offset + static_cast<size_t>(in_slot) * width;
    request.header.bytes = static_cast<size_t>(count) * width;
    request.header.numel = count;
    request.dst = const_cast<std::byte*>(staging_.incoming_piece(own(), buffer));
    request.bytes = static_cast<size_t>(count) * (host.members.size() == 1 ? width : sizeof(float));
    request.done = &arrived_[static_cast<size_t>(buffer)];
    request.value = wanted_[static_cast<size_t>(buffer)] = ++requests_;
    parts_.link->request(request);
  }
  ++round.requested;
  return true;
}

// Keeps one buffer per other host free, so that the round that is being reduced can always go on.
void HostReductions::request_ahead() {
  for (size_t i = 0; i < open_; ++i) {
    while (request_next(*rounds_[i], others_)) {
    }
  }
}

void HostReductions::close_round(Round& round) {
  const auto at = std::find_if(rounds_.begin(), rounds_.begin() + static_cast<long>(open_),
                               [&](const auto& r) { return r.get() == &round; });
  std::rotate(at, at + 1, rounds_.begin() + static_cast<long>(open_));
  --open_;
}

Status HostReductions::sum_span(Round& round, BlockSink sink, const CollectiveSite& site) {
  const int64_t pieces = pieces_of(round.slot.numel);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    OFSDP_RETURN_IF_ERROR(sum_piece(round, piece, sink, site));
    if (round.view->others > 0) request_ahead();
  }
  to_serve_[static_cast<size_t>(round.channel)] +=
      elements_of(*round.view, round.view->remote, round.slot);
  return {};
}

Status HostReductions::sum_piece(Round& round, int64_t piece, BlockSink sink,
                                 const CollectiveSite& site) {
  const bool remote = round.view->others > 0;
  if (remote && round.requested == piece) {
    const bool requested = request_next(round, 0);
    OFSDP_CHECK(requested, "no room for a piece");
  }
  size_t next = round.first;
  for (const GroupView::Host& host : round.view->hosts) {
    if (host.host == parts_.map->host()) continue;
    const auto buffer = static_cast<size_t>(round.buffers[next++]);
    const auto there = [&] { return arrived_[buffer].load() == wanted_[buffer]; };
    OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(there, rank(), host.server, site));
  }
  const int64_t most = staging_.incoming_elements();
  const int64_t first = piece * most;
  const int64_t end = std::min(round.slot.numel, first + most);
  for (int64_t begin = first; begin < end; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, end - begin);
    sum_block(round, begin, begin - first, count);
    sink(begin, {block_.data(), static_cast<size_t>(count)});
  }
  for (; round.first < next; ++round.first) free_.push_back(round.buffers[round.first]);
  return {};
}

// Computes the block's sum over all hosts in block_: adds, in host order, the sums that have
// arrived from other hosts and this host's sum, which it computes from the slots.
void HostReductions::sum_block(const Round& round, int64_t begin, int64_t in_piece, int64_t count) {
  const GroupView& view = *round.view;
  const DType dtype = round.slot.dtype;
  const size_t width = dtype_size(dtype);
  bool first = true;
  size_t buffer = round.first;
  for (const GroupView::Host& host : view.hosts) {
    if (host.host == parts_.map->host()) {
      const int64_t in_slot = first_of_span(round) + begin;
      const auto sources = std::span(sources_).first(view.here.size());
      for (size_t i = 0; i < view.here.size(); ++i) {
        sources[i] =
            parts_.segment(view.here[i]) + round.slot.offset + static_cast<size_t>(in_slot) * width;
      }
      sum_in_rank_order(sources, dtype, count, first ? block_.data() : partial_.data(),
                        round.slot.onto != nullptr ? round.slot.onto + begin : nullptr);
      if (!first) {
        add_elements(reinterpret_cast<std::byte*>(partial_.data()), DType::kFloat32, block_.data(),
                     count);
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

// The ranks on this host share the work: each fetches some remote spans, complete, into its own
// slot.
Status HostReductions::pull_summed(int channel, const GroupView& view, const SlotSource& slot,
                                   const CollectiveSite& site) {
  int server = rank();
  for (size_t i = 0; i < view.remote.size(); ++i) {
    const int owner = view.remote[i];
    if (view.here[i % view.here.size()] != rank()) continue;
    server = parts_.map->server(parts_.map->host_of[static_cast<size_t>(owner)], rank());
    const RankPart part = slot.of(view.group.index_of(owner));
    const size_t bytes = static_cast<size_t>(part.numel) * sizeof(float);
    for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
      LinkRequest request = make_request(LinkKind::kSummed, channel, view.group);
      request.server = server;
      request.header.rank = owner;
      request.header.offset = slot.offset + static_cast<size_t>(part.begin) * sizeof(float) + begin;
      request.header.bytes = request.bytes = std::min(kPieceBytes, bytes - begin);
      request.dst = own() + request.header.offset;
      request.done = &summed_arrived_;
      parts_.link->request(request);
      ++summed_requested_;
    }
  }
  const auto all = [&] { return summed_arrived_.load() >= summed_requested_; };
  return parts_.wait->until_ready(all, rank(), server, site);
}

Status HostReductions::copy_from_peers(int channel, const GroupView& view, const SlotSource& slot,
                                       const CollectiveSite& site) {
  const uint64_t round = mine(channel).posted;
  const auto copy = [&](int owner, int from) {
    const RankPart part = slot.of(view.group.index_of(owner));
    const size_t span = slot.offset + static_cast<size_t>(part.begin) * sizeof(float);
    std::memcpy(own() + span, parts_.segment(from) + span,
                static_cast<size_t>(part.numel) * sizeof(float));
  };
  const auto turn =
      [&] {  // a fence: the link's reads come before the copy that overwrites the bytes
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

}  // namespace ofsdp::fsdp
