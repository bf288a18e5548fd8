// The part of HostLink that sends this rank's requests and takes their answers.
#include <algorithm>

#include "fsdp/comm/hosts/host_link.h"

namespace ofsdp::fsdp {

void HostLink::send_request(const LinkRequest& request) {
  if (free_.empty()) {
    OFSDP_CHECK(under_way_.size() < kPlaces, "{} requests under way", under_way_.size());
    free_.push_back(static_cast<uint32_t>(under_way_.size()));
    ids_.push_back(static_cast<uint32_t>(under_way_.size()));
    under_way_.emplace_back();
    half_.push_back(false);
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  ids_[place] += kPlaces;
  LinkRequest& kept = under_way_[place];
  kept = request;
  kept.header.id = ids_[place];
  if (kept.header.kind == LinkKind::kExchange) {
    const auto host = static_cast<size_t>(map_->host_of[static_cast<size_t>(kept.server)]);
    kept.dst = reinterpret_cast<std::byte*>(exchanged_[host].data());
  }
  for (size_t i = 0; i < servers_; ++i) {
    if (lines_[i]->peer() != kept.server) continue;
    if (engine_ && kept.bytes > 0) {
      const Status status = engine_->receive(kept.server, kept.header.id, {kept.dst, kept.bytes});
      if (!status.ok()) return engine_failed(status);
    }
    lines_[i]->queue(kept.header);
  }
}

// Only what was asked for, of the size that there is room for.
bool HostLink::take_answer(LinkLine& line, const LinkHeader& header, std::byte*& payload) {
  const uint32_t place = header.id % kPlaces;
  if (place >= under_way_.size() || ids_[place] != header.id) return false;
  const LinkRequest& request = under_way_[place];
  if (request.server != line.peer() || request.bytes != header.bytes) return false;
  if (header.bytes == 0) {
    finish(header.id);
  } else if (engine_) {
    if (abandoned_) return true;
    ++arriving_;
    half_done(header.id);
  } else {
    payload = abandoned_ && request.is_shard() ? line.nowhere() : request.dst;
  }
  return true;
}

void HostLink::finish(uint32_t id) {
  const uint32_t place = id % kPlaces;
  const LinkRequest& request = under_way_[place];
  if (request.header.kind == LinkKind::kExchange) finish_exchange(request);
  if (request.done != nullptr) {
    if (request.value != 0) {
      request.done->store(request.value, std::memory_order_seq_cst);
    } else {
      request.done->fetch_add(1, std::memory_order_seq_cst);
    }
    page_->ring(map_->rank);
  }
  ids_[place] += kPlaces;  // a second answer is none
  free_.push_back(place);
}

// The engine's bytes and the answer on the connection may come in either order.
void HostLink::half_done(uint32_t id) {
  bool& half = half_[id % kPlaces];
  half = !half;
  if (!half) finish(id);
}

void HostLink::finish_exchange(const LinkRequest& request) {
  const auto host = static_cast<size_t>(map_->host_of[static_cast<size_t>(request.server)]);
  const auto count = static_cast<size_t>(request.header.numel);
  const double* next = exchanged_[host].data();
  for (const int r : map_->hosts[host]) {
    RankState& rank = page_->rank(r);
    std::copy_n(next, count, rank.payload[request.header.round % 2]);
    page_->publish(rank.sequence, request.header.round, r);
    next += count;
  }
}

void HostLink::progress_engine() {
  if (!engine_ || abandoned_ || (arriving_ <= 0 && outgoing_.empty())) return;
  engine_done_.clear();
  const Status status = engine_->progress(engine_done_);
  if (!status.ok()) return engine_failed(status);
  for (const PayloadEngine::Done& done : engine_done_) {
    if (!done.sent) {
      --arriving_;
      half_done(done.id);
      continue;
    }
    const auto found = std::ranges::find_if(
        outgoing_, [&](const Outgoing& o) { return o.peer == done.peer && o.id == done.id; });
    if (found == outgoing_.end()) continue;
    const LinkAnswer answer = found->answer;
    outgoing_.erase(found);
    sent(answer);
  }
  if (engine_done_.empty()) std::this_thread::yield();
}

}  // namespace ofsdp::fsdp
