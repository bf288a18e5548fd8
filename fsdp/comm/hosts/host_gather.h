// All-gather across hosts: every byte comes to a host once. The ranks of the group on this host
// take turns to fetch the pieces of remote shards into their staging, and all read them there.
//
// Ownership: views. Threads: the rank's one. Errors: those of PeerWait.
#pragma once
#include <algorithm>
#include <array>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_staging.h"
#include "fsdp/comm/rank_sum.h"

namespace ofsdp::fsdp {

class HostGather {
 public:
  HostGather(const HostParts& parts, const HostStaging& staging)
      : parts_(parts), staging_(staging) {}

  Status gather(GroupView& view, const ShardSource& source, std::byte* dst, DType dst_dtype,
                const CollectiveSite& site) {
    Plan plan{*parts_.map, view, source, dst, dst_dtype};
    plan.fetchers[0] = parts_.map->rank;
    if (!site.alone) {
      std::ranges::copy(view.here, plan.fetchers.begin());
      plan.fetcher_count = static_cast<int>(view.here.size());
      ++view.gathers;
    }
    if (plan.fetcher_count == 1 && source.dtype == dst_dtype) return straight(plan, site);
    return together(plan, site);
  }

 private:
  // A piece of a gather of a group: what a reader looks for in a slot. Unlike any other that can be
  // left in it: a slot is refilled within 2^20 gathers of the group.
  static uint64_t ticket(const GroupView& view, uint64_t gathers, int64_t piece) {
    const auto field = [](int64_t value, int bits) {
      return static_cast<uint64_t>(value) & ((uint64_t{1} << bits) - 1);
    };
    return ((field(view.group.first, 10) << 53 | field(view.group.count, 11) << 42 |
             field(view.group.stride, 10) << 32 | field(static_cast<int64_t>(gathers), 18) << 14 |
             field(piece, 14)) |
            uint64_t{1} << 63);
  }

  // The remote shards, one after the other, cut into pieces.
  struct Plan {
    const HostMap& map;
    const GroupView& view;
    const ShardSource& source;
    std::byte* dst;
    DType dst_dtype;
    std::array<int, kMostRanks> fetchers = {};  // ranks of this host that take turns
    int fetcher_count = 1;
    size_t width = dtype_size(source.dtype);
    size_t bytes = static_cast<size_t>(source.numel) * width;
    int64_t pieces_of_shard = static_cast<int64_t>((bytes + kPieceBytes - 1) / kPieceBytes);
    int64_t pieces = pieces_of_shard * static_cast<int64_t>(view.remote.size());

    int fetcher(int64_t piece) const {
      return fetchers[static_cast<size_t>(piece % fetcher_count)];
    }
    int slot(int64_t piece) const {
      return static_cast<int>(piece / fetcher_count % HostStaging::kFetched);
    }
    int owner(int64_t piece) const {
      return view.remote[static_cast<size_t>(piece / pieces_of_shard)];
    }
    size_t begin(int64_t piece) const {
      return static_cast<size_t>(piece % pieces_of_shard) * kPieceBytes;
    }
    size_t size(int64_t piece) const { return std::min(kPieceBytes, bytes - begin(piece)); }
    std::byte* target(int64_t piece) const {
      const auto index = static_cast<size_t>(view.group.index_of(owner(piece)));
      const size_t element = index * static_cast<size_t>(source.numel) + begin(piece) / width;
      return dst + element * dtype_size(dst_dtype);
    }
    LinkRequest request(int64_t piece) const {
      const int rank = owner(piece);
      const auto index = static_cast<size_t>(view.group.index_of(rank));
      const size_t offset = source.offset + index * source.stride + begin(piece);
      return {.server = map.server(map.host_of[static_cast<size_t>(rank)], map.rank),
              .header = {.kind = LinkKind::kShard,
                         .rank = rank,
                         .offset = offset,
                         .bytes = size(piece)},
              .bytes = size(piece)};
    }
  };

  Status straight(const Plan& plan, const CollectiveSite& site) {
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
      OFSDP_RETURN_IF_ERROR(
          parts_.wait->until_ready(there, parts_.map->rank, request.server, site));
    }
    if (plan.pieces == 0) return {};
    const auto all = [&] { return arrived_.load() >= expected_; };
    return parts_.wait->until_ready(all, parts_.map->rank, plan.request(plan.pieces - 1).server,
                                    site);
  }

  // Every rank reads the pieces in order and fetches its own as far ahead as it has slots, so the
  // slowest reader holds up the others, and nobody for ever.
  Status together(const Plan& plan, const CollectiveSite& site) {
    const int rank = parts_.map->rank;
    int64_t next = 0;
    while (next < plan.fetcher_count && plan.fetchers[static_cast<size_t>(next)] != rank) ++next;
    for (int64_t piece = 0; piece < plan.pieces; ++piece) {
      const int fetcher = plan.fetcher(piece);
      for (; next < plan.pieces; next += plan.fetcher_count) {
        FetchedSlot& slot = parts_.page->fetched(rank, plan.slot(next));
        const auto empty = [&slot] { return slot.pending.load() == 0; };
        if (next == piece) {
          // For its readers: whoever of this host does not read waits for nobody.
          OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(empty, rank, rank, site));
        }
        if (!empty()) break;
        fetch(plan, next);
      }
      const std::byte* segment = parts_.segment(fetcher);
      FetchedSlot& slot = parts_.page->fetched(fetcher, plan.slot(piece));
      const uint64_t wanted = ticket(plan.view, plan.view.gathers, piece);
      const auto filled = [&] { return slot.filled.load() == wanted; };
      const int blamed = fetcher == rank ? plan.request(piece).server : fetcher;
      OFSDP_RETURN_IF_ERROR(parts_.wait->until_ready(filled, fetcher, blamed, site));
      convert_elements(staging_.fetched(segment, plan.slot(piece)), plan.source.dtype,
                       plan.target(piece), plan.dst_dtype,
                       static_cast<int64_t>(plan.size(piece) / plan.width));
      if (slot.pending.fetch_sub(1) == 1) parts_.page->ring(fetcher);
    }
    return {};
  }

  // Into a slot of this rank that nobody reads any more.
  void fetch(const Plan& plan, int64_t piece) const {
    const std::byte* own = parts_.segment(parts_.map->rank);
    FetchedSlot& slot = parts_.page->fetched(parts_.map->rank, plan.slot(piece));
    slot.filled.store(0);  // a rank that gathers alone uses the ticket of the last gather again
    slot.pending.store(static_cast<uint64_t>(plan.fetcher_count));
    LinkRequest request = plan.request(piece);
    request.dst = const_cast<std::byte*>(staging_.fetched(own, plan.slot(piece)));
    request.done = &slot.filled;
    request.value = ticket(plan.view, plan.view.gathers, piece);
    parts_.link->request(request);
  }

  HostParts parts_;
  HostStaging staging_;
  std::atomic<uint64_t> arrived_{0};  // pieces that went straight to their place
  uint64_t expected_ = 0;
};

}  // namespace ofsdp::fsdp
