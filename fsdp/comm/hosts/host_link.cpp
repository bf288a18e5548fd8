#include "fsdp/comm/hosts/host_link.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "kernels/base/host_tasks.h"

namespace ofsdp::fsdp {
namespace {

// A deferred request waits for a post on this host. This rank's own post wakes the link; other
// ranks' posts are polled for, if there are any.
constexpr timespec kSoon{0, 300'000};
constexpr timespec kSoonAlone{0, 10'000'000};
constexpr timespec kIdle{0, 100'000'000};

// Returns true if a word from a peer is a valid failure_word: the rank in it is used as an index.
bool is_failure(uint64_t value, int world) {
  if (value > UINT32_MAX) return false;
  const auto word = static_cast<uint32_t>(value);
  const int rank = failed_rank(word), exit = failed_exit(word);
  return rank >= 0 && rank < world && (exit == 1 || exit == 2);
}

// REQUIRES: the group in the header is valid.
bool is_member(const LinkHeader& header, int rank) {
  const int after = rank - header.first;
  return after >= 0 && after % header.stride == 0 && after / header.stride < header.count;
}

}  // namespace

bool LinkLine::flush(const std::function<void(const LinkAnswer&)>& sent) {
  while (open() && !queue_.empty()) {
    Out& out = queue_.front();
    const size_t head = sizeof out.header, whole = head + out.answer.bytes;
    iovec parts[2];
    int count = 0;
    if (written_ < head) {
      parts[count++] = {reinterpret_cast<char*>(&out.header) + written_, head - written_};
    }
    const size_t done = written_ > head ? written_ - head : 0;
    if (out.answer.bytes > done) {
      parts[count++] = {const_cast<std::byte*>(out.answer.data) + done, out.answer.bytes - done};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t wrote = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno == EAGAIN;
    written_ += static_cast<size_t>(wrote);
    if (written_ < whole) continue;
    if (out.answer.bytes > 0) sent(out.answer);
    written_ = 0;
    queue_.pop_front();
  }
  return true;
}

bool LinkLine::receive(const std::function<bool(const LinkHeader&, std::byte*&)>& header,
                       const std::function<void(const LinkHeader&)>& payload, int& error) {
  error = 0;
  while (open()) {
    const bool dropped = in_payload_ && target_ == nowhere();
    auto* const begin = in_payload_ ? target_ : reinterpret_cast<std::byte*>(&in_);
    std::byte* const to = dropped ? begin : begin + got_;
    const size_t whole = in_payload_ ? in_.bytes : sizeof in_;
    const size_t most = dropped ? std::min(whole - got_, dropped_.size()) : whole - got_;
    const ssize_t count = recv(fd(), to, most, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) {
      error = count < 0 ? errno : 0;
      return false;
    }
    got_ += static_cast<size_t>(count);
    if (got_ < whole) continue;
    got_ = 0;
    if (in_payload_) {
      in_payload_ = false;
      payload(in_);
      continue;
    }
    target_ = nullptr;
    error = EPROTO;
    if (queue_.size() + deferred.size() > kMaxPending) return false;
    if (in_.magic != kLinkMagic || !header(in_, target_)) return false;
    error = 0;
    in_payload_ = target_ != nullptr;
  }
  return true;
}

HostLink::HostLink(const HostMap* map, const ControlPage* page, HostsRendezvous& meeting,
                   std::unique_ptr<PayloadEngine> engine, UniqueFd wake)
    : map_(map), page_(page), engine_(std::move(engine)), wake_(std::move(wake)) {
  for (auto* side : {&meeting.servers, &meeting.clients}) {
    for (HostConnection& connection : *side) {
      lines_.push_back(std::make_unique<LinkLine>(connection.peer, std::move(connection.socket)));
      if (map->place_of[static_cast<size_t>(connection.peer)] != 0) continue;
      for (auto& turn : lines_.back()->doubles) turn.resize(map->here().size() * kMaxExchange);
    }
  }
  servers_ = meeting.servers.size();
  heard_.resize(map->hosts.size());
  sources_.reserve(map->here().size());
  for (const auto& ranks : map->hosts) {
    exchanged_.emplace_back(map->place() == 0 ? ranks.size() * kMaxExchange : 0);
  }
  for (int r = 0; r < map->world(); ++r) {
    if (!map->is_here(r)) page->rank(r).pid.store(meeting.pids[static_cast<size_t>(r)]);
  }
}

Result<std::unique_ptr<HostLink>> HostLink::start(const HostMap* map, const ControlPage* page,
                                                  HostsRendezvous& meeting,
                                                  std::unique_ptr<PayloadEngine> engine) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return fault("eventfd: {}", std::strerror(errno));
  std::unique_ptr<HostLink> link(
      new HostLink(map, page, meeting, std::move(engine), std::move(wake)));
  OFSDP_ASSIGN_OR_RETURN(link->thread_, start_thread("ofsdp-link", "the link of hosts",
                                                     [raw = link.get()] { raw->run(); }));
  return link;
}

HostLink::~HostLink() {
  if (thread_.joinable() && page_->run().failed.load() != 0) settle(std::chrono::seconds(1));
  stop();
  if (engine_) engine_->close(page_->run().failed.load() == 0 && page_->run().dead.load() == 0);
}

void HostLink::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake();
  thread_.join();
}

void HostLink::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void HostLink::serve(const LinkMemory& memory) {
  {
    const std::lock_guard lock(mutex_);
    memory_ = memory;
    for (int b = 0; b < memory.buffer_count; ++b) free_buffers_.push_back(b);
  }
  serving_.store(true);
  wake();
}

void HostLink::request(const LinkRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(request);
  }
  if (!ordered_.exchange(true)) wake();
}

void HostLink::say_leave() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  wake();
}

void HostLink::abandon_shards() {
  std::unique_lock lock(mutex_);
  abandoning_ = true;
  wake();
  answered_.wait(lock, [this] { return !abandoning_; });
}

void HostLink::settle(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  settling_ = true;
  wake();
  answered_.wait_for(lock, patience, [this] { return !settling_; });
}

void HostLink::run() {
  while (!stopping_.load()) {
    take_orders();
    relay_failure();
    serve_deferred();
    progress_engine();
    flush_all();
    wait_for_events();
  }
}

void HostLink::take_orders() {
  ordered_.store(false);
  bool leave = false, abandon = false;
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(orders_);
    leave = std::exchange(leaving_, false);
    abandon = abandoning_;
  }
  for (const LinkRequest& request : taken_) send_request(request);
  taken_.clear();
  if (abandon) drop_shards();
  ask();
  if (!leave) return;
  for (auto& line : lines_) line->queue({.kind = LinkKind::kLeave});
}

void HostLink::drop_shards() {
  abandoned_ = true;
  for (auto& line : lines_) {
    const LinkHeader* const header = line->arriving();
    if (header != nullptr && pending_[header->id % kPlaces].is_shard()) line->drop();
  }
  if (engine_) engine_->abandon();
  outgoing_.clear();
  arriving_ = 0;
  const std::lock_guard lock(mutex_);
  abandoning_ = false;
  answered_.notify_all();
}

void HostLink::flush_all() {
  bool idle = true;
  for (auto& line : lines_) {
    const bool fine = line->flush([this](const LinkAnswer& answer) { sent(answer); });
    if (!fine) {
      const int error = errno;
      read(*line);  // before it ended, the peer may have said who prints the failure
      lost(*line, error);
    }
    idle = idle && (!line->open() || line->idle());
  }
  if (!idle) return;
  const std::lock_guard lock(mutex_);
  if (!settling_ || ordered_.load() || leaving_) return;
  if (page_->run().failed.load() != 0 && (!relayed_ || asked_for_other_ >= 0)) return;
  settling_ = false;
  answered_.notify_all();
}

void HostLink::wait_for_events() {
  auto& events = events_;
  events.assign(1, {wake_.get(), POLLIN, 0});
  bool soon = false;
  for (auto& line : lines_) {
    const short writes = line->idle() ? 0 : POLLOUT;
    events.push_back({line->open() ? line->fd() : -1, static_cast<short>(POLLIN | writes), 0});
    soon = soon || !line->deferred.empty();
  }
  const bool now = arriving_ > 0 || !outgoing_.empty();
  const timespec none{0, 0};
  const timespec& look = map_->here().size() == 1 ? kSoonAlone : kSoon;
  if (ppoll(events.data(), events.size(), now ? &none : soon ? &look : &kIdle, nullptr) <= 0) {
    return;
  }
  if (events[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
  for (size_t i = 0; i < lines_.size(); ++i) {
    if ((events[i + 1].revents & (POLLIN | POLLERR | POLLHUP)) != 0) read(*lines_[i]);
  }
}

void HostLink::read(LinkLine& line) {
  int error = 0;
  const bool fine =
      line.receive([&](const LinkHeader& header,
                       std::byte*& payload) { return take_header(line, header, payload); },
                   [&](const LinkHeader& header) { finish(header.id); }, error);
  if (!fine) lost(line, error);
}

bool HostLink::take_header(LinkLine& line, const LinkHeader& header, std::byte*& payload) {
  switch (header.kind) {
    case LinkKind::kShard:
    case LinkKind::kPartial:
    case LinkKind::kSummed:
    case LinkKind::kExchange:
      if (line.deferred.size() >= kPlaces) return false;
      line.deferred.push_back(header);
      return true;
    case LinkKind::kData:
      return take_answer(line, header, payload);
    case LinkKind::kGone:
      if (header.rank < 0 || header.rank >= map_->world()) return false;
      page_->note_gone(header.rank);
      return true;
    case LinkKind::kFailed:
      if (!is_failure(header.value, map_->world())) return false;
      take_failed(line, header);
      return true;
    case LinkKind::kClaim:
      if (!is_failure(header.value, map_->world())) return false;
      take_claim(line, header);
      return true;
    case LinkKind::kWho:
      take_who(line, header);
      return true;
    case LinkKind::kVerdict:
    case LinkKind::kBlame:
      take_reply(line, header);
      return true;
    case LinkKind::kLeave:
      line.left = true;
      page_->note_leave(line.peer());
      return true;
  }
  return false;
}

// ---- This rank's requests ----

void HostLink::send_request(const LinkRequest& request) {
  if (free_.empty()) {
    OFSDP_CHECK(pending_.size() < kPlaces, "{} requests under way", pending_.size());
    free_.push_back(static_cast<uint32_t>(pending_.size()));
    ids_.push_back(static_cast<uint32_t>(pending_.size()));
    pending_.emplace_back();
    half_.push_back(false);
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  ids_[place] += kPlaces;
  LinkRequest& kept = pending_[place];
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
      if (!status.ok()) return engine_failed();
    }
    lines_[i]->queue(kept.header);
  }
}

// Returns false unless this rank asked for the answer and has room for it.
bool HostLink::take_answer(LinkLine& line, const LinkHeader& header, std::byte*& payload) {
  const uint32_t place = header.id % kPlaces;
  if (place >= pending_.size() || ids_[place] != header.id) return false;
  const LinkRequest& request = pending_[place];
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
  const LinkRequest& request = pending_[place];
  if (request.header.kind == LinkKind::kExchange) finish_exchange(request);
  if (request.done != nullptr) {
    if (request.value != 0) {
      request.done->store(request.value, std::memory_order_seq_cst);
    } else {
      request.done->fetch_add(1, std::memory_order_seq_cst);
    }
    page_->ring(map_->rank);
  }
  ids_[place] += kPlaces;  // so a second answer is refused
  free_.push_back(place);
}

// The engine's bytes and the answer on the connection may arrive in either order.
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
  if (!status.ok()) return engine_failed();
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

// ---- Answers to the ranks that this one serves ----

const std::byte* HostLink::segment(int rank) const {
  return memory_.segments->of(map_->place_of[static_cast<size_t>(rank)]);
}

bool HostLink::valid_group(const LinkHeader& header) const {
  const int64_t world = map_->world();
  return header.first >= 0 && header.count >= 1 && header.count <= world && header.stride >= 1 &&
         header.first + int64_t{header.count - 1} * header.stride < world && header.channel >= 0 &&
         header.channel < kMaxChannels;
}

// Slots are at the same place in every segment, so this rank's may stand for all.
bool HostLink::valid(const LinkHeader& header) const {
  if (!well_formed(header) || header.kind == LinkKind::kExchange) return well_formed(header);
  return lies_in_segment(header, header.kind == LinkKind::kPartial ? map_->rank : header.rank);
}

bool HostLink::well_formed(const LinkHeader& header) const {
  if (header.kind == LinkKind::kExchange) return header.numel >= 0 && header.numel <= kMaxExchange;
  if (header.kind == LinkKind::kPartial) {
    return valid_group(header) && is_32_or_16_bit_float(static_cast<DType>(header.dtype)) &&
           header.numel >= 0 && header.numel <= kPieceElements &&
           header.bytes ==
               static_cast<size_t>(header.numel) * dtype_size(static_cast<DType>(header.dtype));
  }
  const bool here = header.rank >= 0 && header.rank < map_->world() && map_->is_here(header.rank);
  return here && (header.kind == LinkKind::kShard || valid_group(header));
}

bool HostLink::lies_in_segment(const LinkHeader& header, int rank) const {
  const size_t bytes = memory_.segments->bytes_of(map_->place_of[static_cast<size_t>(rank)]);
  return header.bytes <= kPieceBytes && header.offset <= bytes &&
         header.bytes <= bytes - header.offset;
}

int HostLink::first_here(const LinkHeader& header) const {
  for (const int r : map_->here()) {
    if (is_member(header, r)) return r;
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
    for (const int r : map_->here()) {
      if (is_member(header, r) && lacks(page_->channel(header.channel, r).posted)) return r;
    }
  }
  return -1;
}

void HostLink::serve_deferred() {
  bool any = false;
  for (auto& line : lines_) any = any || !line->deferred.empty();
  // Before the counters are read, so that no nudge is missed.
  deferring_.store(any, std::memory_order_seq_cst);
  for (auto& line : lines_) {
    auto& waiting = line->deferred;
    size_t kept = 0;
    for (size_t i = 0; i < waiting.size() && line->open(); ++i) {
      if (!answer(*line, waiting[i])) waiting[kept++] = waiting[i];
    }
    waiting.resize(line->open() ? kept : 0);
  }
}

// Returns true if the request is finished, false if it must wait.
bool HostLink::answer(LinkLine& line, const LinkHeader& request) {
  const bool needs_memory = request.kind != LinkKind::kExchange;
  if (needs_memory && !serving_.load()) return false;
  const bool may_ask = needs_memory || !line.doubles[0].empty();
  if (!valid(request) || !may_ask) {
    lost(line, EPROTO);
    return true;
  }
  if (const int late = missing(request); late >= 0) {
    if (page_->rank(late).left.load(std::memory_order_seq_cst) == 0) return false;
    if (missing(request) != late) return false;  // it arrived in the meantime and left
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
  sources_.clear();
  for (const int r : map_->here()) {
    if (is_member(request, r)) sources_.push_back(segment(r) + request.offset);
  }
  if (sources_.empty()) {
    lost(line, EPROTO);
    return true;
  }
  const int first = first_here(request);
  if (sources_.size() == 1) {
    reply(line, request, {sources_[0], request.bytes, -1, request.channel, first, request.numel});
    return true;
  }
  if (free_buffers_.empty()) return false;
  const int buffer = free_buffers_.back();
  free_buffers_.pop_back();
  auto* sum = reinterpret_cast<float*>(memory_.buffers + static_cast<size_t>(buffer) * kPieceBytes);
  sum_in_rank_order(sources_, static_cast<DType>(request.dtype), request.numel, sum);
  count_served(request.channel, first, request.numel);
  reply(line, request,
        {reinterpret_cast<std::byte*>(sum), static_cast<size_t>(request.numel) * sizeof(float),
         buffer});
  return true;
}

// Copies the payloads, since ranks overwrite them in the page. Each line has two copies that
// alternate, as the page has: see HostCommunicator::exchange.
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
  if (!status.ok()) engine_failed();
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
