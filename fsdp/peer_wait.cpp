#include "fsdp/peer_wait.h"

#include <algorithm>

namespace ofsdp {
namespace {

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int64_t nanoseconds_now() {
  const auto now = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Says in the page that this rank sleeps on `peer`: until it came, and for good where it did not,
// so that those who wait for this rank do not blame it while it reports.
class Sleeper {
 public:
  Sleeper(RankState& me, RankState& peer, int peer_rank) : me_(me), peer_(peer) {
    look();
    me_.waits_for.store(peer_rank + 1);
    peer_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() { peer_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  void look() { me_.looked.store(nanoseconds_now()); }
  void met() { me_.waits_for.store(0); }

 private:
  RankState& me_;
  RankState& peer_;
};

// A rank that was stopped in a wait still says that it waits, but looks no more.
bool is_waiting(const RankState& rank) {
  constexpr int64_t kLate = std::chrono::nanoseconds(5 * PeerWait::kSlice).count();
  return rank.waits_for.load() != 0 && nanoseconds_now() - rank.looked.load() < kLate;
}

// The rank to blame: `peer` may itself be waiting for another one.
int end_of_chain(const ControlPage& page, int peer) {
  for (int hop = 0; hop < page.world() && is_waiting(page.rank(peer)); ++hop) {
    peer = std::max(page.rank(peer).waits_for.load() - 1, 0);
  }
  return peer;
}

}  // namespace

std::string site_text(const CollectiveSite& site) {
  if (site.unit < 0) return site.collective;
  return fmt::format("{} of unit {}", site.collective, site.unit);
}

Status PeerWait::failure(const CollectiveSite& site) const {
  const RunState& run = page_->run();
  if (const uint32_t failed = run.failed.load(); failed != 0) {
    return {ErrorKind::kPeer, fmt::format("rank {} failed", (failed >> 8) - 1)};
  }
  const int dead = run.dead.load() - 1;
  return fault("rank {} (pid {}) died while rank {} waited in {} at step {}", dead,
               page_->rank(dead).pid.load(), rank_, site_text(site), site.step);
}

Status PeerWait::late(int peer, const CollectiveSite& site) const {
  const int culprit = end_of_chain(*page_, peer);
  return fault("rank {} (pid {}) did not arrive within {} s: {}, step {}", culprit,
               page_->rank(culprit).pid.load(),
               std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(), site_text(site),
               site.step);
}

Status PeerWait::gone(int peer, const CollectiveSite& site) const {
  return fault("rank {} (pid {}) had ended when rank {} waited for it in {} at step {}", peer,
               page_->rank(peer).pid.load(), rank_, site_text(site), site.step);
}

bool PeerWait::spin(const std::atomic<uint64_t>& counter, uint64_t target) const {
  const auto end = Clock::now() + spin_;
  do {
    for (int i = 0; i < 8; ++i) {
      if (counter.load(std::memory_order_acquire) >= target) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

Status PeerWait::sleep(const std::atomic<uint64_t>& counter, uint64_t target, int peer,
                       const CollectiveSite& site) const {
  RankState& theirs = page_->rank(peer);
  Sleeper sleeper(page_->rank(rank_), theirs, peer);
  std::chrono::nanoseconds waited{0};
  while (true) {
    const bool left = theirs.left.load(std::memory_order_seq_cst) != 0;  // before the counter
    const uint32_t heard = theirs.bell.load(std::memory_order_seq_cst);
    if (counter.load(std::memory_order_seq_cst) >= target) {
      sleeper.met();
      return {};
    }
    OFSDP_RETURN_IF_ERROR(check(site));
    if (left) return gone(peer, site);
    if (waited >= timeout_) return late(peer, site);
    sleeper.look();
    const auto before = Clock::now();
    page_->sleep_on_bell(peer, heard,
                         std::min<std::chrono::nanoseconds>(kSlice, timeout_ - waited));
    // More than two slices means that this process did not run; that time is not the peer's fault.
    waited += std::min<std::chrono::nanoseconds>(Clock::now() - before, 2 * kSlice);
  }
}

}  // namespace ofsdp
