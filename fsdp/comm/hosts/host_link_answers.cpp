// The part of HostLink that answers the requests of the ranks it serves.
#include <algorithm>
#include <array>
#include <cerrno>

#include "fsdp/comm/hosts/host_link.h"
#include "fsdp/comm/rank_sum.h"

namespace ofsdp::fsdp {

const std::byte* HostLink::segment(int rank) const {
  return memory_.segments->of(map_->place_of[static_cast<size_t>(rank)]);
}

bool HostLink::valid_group(const LinkHeader& header) const {
  const int64_t world = map_->world();
  return header.first >= 0 && header.count >= 1 && header.count <= world && header.stride >= 1 &&
         header.first + int64_t{header.count - 1} * header.stride < world && header.channel >= 0 &&
         header.channel < kMostChannels;
}

bool HostLink::valid(const LinkHeader& header) const {
  if (header.kind == LinkKind::kExchange) return header.numel >= 0 && header.numel <= kExchangeMost;
  if (header.bytes > kPieceBytes || header.offset > memory_.bytes ||
      header.bytes > memory_.bytes - header.offset) {
    return false;
  }
  if (header.kind == LinkKind::kPartial) {
    return valid_group(header) && is_32_or_16_bit_float(static_cast<DType>(header.dtype)) &&
           header.numel >= 0 && header.numel <= kPieceElements &&
           header.bytes ==
               static_cast<size_t>(header.numel) * dtype_size(static_cast<DType>(header.dtype));
  }
  const bool here = header.rank >= 0 && header.rank < map_->world() && map_->is_here(header.rank);
  return here && (header.kind == LinkKind::kShard || valid_group(header));
}

int HostLink::first_here(const LinkHeader& header) const {
  for (int i = 0; i < header.count; ++i) {
    const int r = header.first + i * header.stride;
    if (map_->is_here(r)) return r;
  }
  return map_->rank;
}

int HostLink::missing(const LinkHeader& header) const {
  const auto lacks = [&](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_seq_cst) < header.round;
  };
  if (header.kind == LinkKind::kExchange) {
    for (const int r : map_->here()) {
      if (lacks(page_->rank(r).sequence)) return r;
    }
  } else if (header.kind == LinkKind::kSummed) {
    if (lacks(page_->channel(header.channel, header.rank).summed)) return header.rank;
  } else if (header.kind == LinkKind::kPartial) {
    for (int i = 0; i < header.count; ++i) {
      const int r = header.first + i * header.stride;
      if (map_->is_here(r) && lacks(page_->channel(header.channel, r).posted)) return r;
    }
  }
  return -1;
}

void HostLink::serve_deferred() {
  bool any = false;
  for (auto& line : lines_) any = any || !line->deferred.empty();
  deferring_.store(any, std::memory_order_seq_cst);  // before the look, so that no nudge is missed
  for (auto& line : lines_) {
    auto& waiting = line->deferred;
    size_t kept = 0;
    for (size_t i = 0; i < waiting.size() && line->open(); ++i) {
      if (!answer(*line, waiting[i])) waiting[kept++] = waiting[i];
    }
    waiting.resize(line->open() ? kept : 0);
  }
}

// True when that is the end of the request.
bool HostLink::answer(LinkLine& line, const LinkHeader& request) {
  const bool needs_memory = request.kind != LinkKind::kExchange;
  if (needs_memory && !serving_.load()) return false;
  if (!valid(request)) {
    lost(line, EPROTO);
    return true;
  }
  if (const int late = missing(request); late >= 0) {
    if (page_->rank(late).left.load(std::memory_order_seq_cst) == 0) return false;
    if (missing(request) != late) return false;  // it came and left since
    LinkHeader gone = request;
    gone.kind = LinkKind::kGone;
    gone.rank = late;
    line.queue(gone);
    return true;
  }
  take_turn();
  const bool ended = answer_with_data(line, request);
  take_turn();
  return ended;
}

bool HostLink::answer_with_data(LinkLine& line, const LinkHeader& request) {
  switch (request.kind) {
    case LinkKind::kExchange:
      answer_exchange(line, request);
      return true;
    case LinkKind::kPartial:
      return answer_partial(line, request);
    case LinkKind::kSummed:
      reply(line, request,
            {segment(request.rank) + request.offset, request.bytes, -1, request.channel,
             first_here(request), static_cast<int64_t>(request.bytes / sizeof(float))});
      return true;
    default:
      reply(line, request, {segment(request.rank) + request.offset, request.bytes});
      return true;
  }
}

bool HostLink::answer_partial(LinkLine& line, const LinkHeader& request) {
  std::array<const std::byte*, kMostRanks> sources;
  size_t count = 0;
  int first = -1;
  for (int i = 0; i < request.count; ++i) {
    const int r = request.first + i * request.stride;
    if (!map_->is_here(r)) continue;
    if (count == 0) first = r;
    sources[count++] = segment(r) + request.offset;
  }
  if (count == 0) {
    lost(line, EPROTO);
    return true;
  }
  if (count == 1) {
    reply(line, request, {sources[0], request.bytes, -1, request.channel, first, request.numel});
    return true;
  }
  if (free_buffers_.empty()) return false;
  const int buffer = free_buffers_.back();
  free_buffers_.pop_back();
  auto* sum = reinterpret_cast<float*>(memory_.buffers + static_cast<size_t>(buffer) * kPieceBytes);
  sum_in_rank_order({sources.data(), count}, static_cast<DType>(request.dtype), request.numel, sum);
  count_served(request.channel, first, request.numel);
  reply(line, request,
        {reinterpret_cast<std::byte*>(sum), static_cast<size_t>(request.numel) * sizeof(float),
         buffer});
  return true;
}

// As a copy: the page's payloads change. Two turns a line, as the page has; see exchange.
void HostLink::answer_exchange(LinkLine& line, const LinkHeader& request) {
  const auto count = static_cast<size_t>(request.numel);
  double* const mine = line.doubles[request.round % 2].data();
  double* next = mine;
  for (const int r : map_->here()) {
    next = std::copy_n(page_->rank(r).payload[request.round % 2], count, next);
  }
  reply(line, request,
        {reinterpret_cast<std::byte*>(mine), static_cast<size_t>(next - mine) * sizeof(double)});
}

void HostLink::reply(LinkLine& line, const LinkHeader& request, const LinkAnswer& answer) {
  LinkHeader header = request;
  header.kind = LinkKind::kData;
  header.bytes = answer.bytes;
  if (!engine_ || answer.bytes == 0) return line.queue(header, answer);
  if (abandoned_) return;
  line.queue(header);
  outgoing_.push_back({line.peer(), request.id, answer});
  const Status status = engine_->send(line.peer(), request.id, {answer.data, answer.bytes});
  if (!status.ok()) engine_failed(status);
}

void HostLink::sent(const LinkAnswer& answer) {
  take_turn();
  if (answer.buffer >= 0) free_buffers_.push_back(answer.buffer);
  if (answer.channel >= 0) count_served(answer.channel, answer.cell, answer.elements);
}

void HostLink::count_served(int channel, int cell, int64_t elements) {
  page_->channel(channel, cell)
      .served.fetch_add(static_cast<uint64_t>(elements), std::memory_order_seq_cst);
  page_->ring(cell);
}

}  // namespace ofsdp::fsdp
