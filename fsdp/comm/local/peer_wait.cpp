#include "fsdp/comm/local/peer_wait.h"

#include <algorithm>

#include "fsdp/comm/rank_identity.h"

namespace ofsdp::fsdp {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds_now() {
  const auto now = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Counts this rank among `peer`'s sleepers, so that `peer` rings the doorbell.
class Sleeper {
 public:
  explicit Sleeper(RankState& peer) : peer_(peer) {
    peer_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() { peer_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  RankState& peer_;
};

}  // namespace

// A stopped process keeps its note in the page but no longer renews it.
bool is_waiting(const RankState& rank) {
  constexpr int64_t kLate = std::chrono::nanoseconds(5 * PeerWait::kSlice).count();
  return rank.waits_for.load() != 0 && nanoseconds_now() - rank.wait_renewed.load() < kLate;
}

WaitNote::WaitNote(RankState& me, int peer) : me_(me) {
  renew();
  me_.waits_for.store(peer + 1);
}

void WaitNote::renew() { me_.wait_renewed.store(nanoseconds_now()); }
void WaitNote::extend() {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(10);
  me_.wait_renewed.store(nanoseconds_now() + kLongest.count());
}
void WaitNote::clear() { me_.waits_for.store(0); }

int end_of_chain(const ControlPage& page, int peer) {
  for (int hop = 0; hop < page.world() && is_waiting(page.rank(peer)); ++hop) {
    peer = std::max(page.rank(peer).waits_for.load() - 1, 0);
  }
  return peer;
}

std::string site_text(const CollectiveSite& site) {
  if (site.unit < 0) return site.collective;
  return format_text("{} of unit {}", site.collective, site.unit);
}

Status PeerWait::failure(const CollectiveSite& site) const {
  const RunFlags& run = page_->run();
  if (const uint32_t failed = run.failed.load(); failed != 0) {
    return {ErrorKind::kPeer, format_text("rank {} failed", failed_rank(failed))};
  }
  const int dead = run.dead.load();
  if (dead == 0) return departure_error(run.gone.load() - 1, site);
  return fault("{} {} while rank {} waited in {} at step {}", process((dead & ~kCut) - 1),
               (dead & kCut) != 0 ? "could not be reached any more" : "died", rank_,
               site_text(site), site.step);
}

Status PeerWait::timeout_error(int peer, const CollectiveSite& site) const {
  int culprit = end_of_chain(*page_, peer);
  if (hosts_.blame) culprit = hosts_.blame(culprit);
  OFSDP_RETURN_IF_ERROR(check(site));  // a failure that became known in the meantime
  return fault("{} did not arrive within {} s: {}{}", process(culprit),
               std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(), site_text(site),
               site.step < 0 ? "" : format_text(", step {}", site.step));
}

Status PeerWait::departure_error(int peer, const CollectiveSite& site) const {
  return fault("{} had ended when rank {} waited for it in {} at step {}", process(peer), rank_,
               site_text(site), site.step);
}

std::string PeerWait::process(int rank) const {
  const int pid = page_->rank(rank).pid.load();
  const std::string host = hosts_.name ? hosts_.name(rank) : host_name();
  return format_text("rank {} (pid {} on {})", rank, pid, host);
}

bool PeerWait::spin(const Ready& ready) const {
  const auto end = Clock::now() + spin_;
  do {
    for (int i = 0; i < 8; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

Status PeerWait::sleep(const Ready& ready, int ringer, int peer, const CollectiveSite& site) const {
  RankState& theirs = page_->rank(ringer);
  WaitNote note = this->note(peer);
  const Sleeper sleeper(theirs);
  const bool may_leave = ringer == peer && (!hosts_.is_here || hosts_.is_here(peer));
  std::chrono::nanoseconds waited{0};
  while (true) {
    // Read before the counter: see [Note: doorbells].
    const bool left = may_leave && theirs.left.load(std::memory_order_seq_cst) != 0;
    const uint32_t heard = theirs.doorbell.load(std::memory_order_seq_cst);
    if (ready()) {
      note.clear();
      return {};
    }
    OFSDP_RETURN_IF_ERROR(check(site));
    if (left) return departure_error(peer, site);
    if (waited >= timeout_) {
      note.extend();
      return timeout_error(peer, site);
    }
    note.renew();
    const auto before = Clock::now();
    page_->sleep_on_doorbell(ringer, heard,
                             std::min<std::chrono::nanoseconds>(kSlice, timeout_ - waited));
    // A longer sleep means that this process was stopped; that time does not count.
    waited += std::min<std::chrono::nanoseconds>(Clock::now() - before, 2 * kSlice);
  }
}

}  // namespace ofsdp::fsdp
