#include "fsdp/comm/hosts/host_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "kernels/base/start_thread.h"

namespace ofsdp::fsdp {
namespace {

// How soon a post is seen when another host waits for it: this rank's own wakes the link, those of
// its host's other ranks are looked for.
constexpr timespec kSoon{0, 300'000};
constexpr timespec kSoonAlone{0, 10'000'000};
constexpr timespec kIdle{0, 100'000'000};

// Is a peer's word a failure_word? Nothing else indexes what this host knows of ranks.
bool is_failure(uint64_t value, int world) {
  if (value > UINT32_MAX) return false;
  const auto word = static_cast<uint32_t>(value);
  const int rank = failed_rank(word), exit = failed_exit(word);
  return rank >= 0 && rank < world && (exit == 1 || exit == 2);
}

}  // namespace

HostLink::HostLink(const HostMap* map, const ControlPage* page, HostsRendezvous& meeting,
                   std::unique_ptr<PayloadEngine> engine, UniqueFd wake)
    : map_(map), page_(page), engine_(std::move(engine)), wake_(std::move(wake)) {
  for (auto* side : {&meeting.servers, &meeting.clients}) {
    for (HostConnection& connection : *side) {
      lines_.push_back(std::make_unique<LinkLine>(connection.peer, std::move(connection.socket)));
      for (auto& turn : lines_.back()->doubles) turn.resize(map->here().size() * kExchangeMost);
    }
  }
  servers_ = meeting.servers.size();
  heard_.resize(map->hosts.size());
  for (const auto& ranks : map->hosts) exchanged_.emplace_back(ranks.size() * kExchangeMost);
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
    if (header != nullptr && under_way_[header->id % kPlaces].is_shard()) line->drop();
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
      read(*line);  // its last words: who prints the failure that it ended with
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

}  // namespace ofsdp::fsdp
