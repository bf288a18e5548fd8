// Waiting for another rank, and the error if it does not come.
//
// `until` spins a few microseconds, then sleeps on the peer's doorbell. It wakes at least every
// kSlice to check whether a rank failed, died or left, and whether the timeout is over. Time in
// which this process was stopped (Ctrl-Z) does not count.
//
// Allocates only for error texts. Errors: kPeer if a rank has reported a failure; kFault if one
// died, left or did not arrive in time, with rank, pid, step, unit and collective.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/local/control_page.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// Notes in the page that this rank waits for `peer`. The note stays until met(); if the peer never
// comes, it stays for good, so that ranks that wait for this one do not blame it while it reports.
class WaitNote {
 public:
  WaitNote(RankState& me, int peer);
  void look();  // call at least every PeerWait::kSlice
  void late();  // extends the note by the time that it takes to find the culprit
  void met();

 private:
  RankState& me_;
};

// Looks up ranks on several hosts. All functions are empty if there is one host.
struct HostLookup {
  std::function<std::string(int rank)> name;  // the rank's host, for messages
  std::function<bool(int rank)> is_here;
  std::function<int(int rank)> blame;  // the rank that a late rank's host would blame
};

class PeerWait {
 public:
  static constexpr std::chrono::milliseconds kSlice{100};

  PeerWait(const ControlPage* page, int rank, std::chrono::nanoseconds timeout,
           std::chrono::nanoseconds spin)
      : page_(page), rank_(rank), timeout_(timeout), spin_(spin) {}

  // Returns an error if the run has failed or a rank has died. Cheap: reads one cache line that
  // hardly ever changes.
  Status check(const CollectiveSite& site) const {
    const RunFlags& run = page_->run();
    if (run.failed.load(std::memory_order_acquire) == 0 &&
        run.dead.load(std::memory_order_acquire) == 0 &&
        run.gone.load(std::memory_order_acquire) == 0) {
      return {};
    }
    return failure(site);
  }

  // Blocks until `counter`, which `peer` publishes, is at least `target`.
  Status until(const std::atomic<uint64_t>& counter, uint64_t target, int peer,
               const CollectiveSite& site) const {
    auto reached = [&counter, target] { return counter.load(std::memory_order_seq_cst) >= target; };
    return until_ready(reached, peer, peer, site);
  }

  // Blocks until `ready()`. `ringer` must ring after each change that `ready` depends on. An error
  // blames `peer` if the time is over, or if `peer` is the ringer and leaves.
  template <typename F>
  Status until_ready(const F& ready, int ringer, int peer, const CollectiveSite& site) const {
    if (ready()) return {};
    const auto began = std::chrono::steady_clock::now();
    const Ready call{&ready, [](const void* f) { return (*static_cast<const F*>(f))(); }};
    Status status = spin(call) ? Status{} : sleep(call, ringer, peer, site);
    waited_ += std::chrono::steady_clock::now() - began;
    return status;
  }

  // After this call a remote rank's departure ends no wait, since it may arrive before the last
  // results. The remote host reports a departure if the rank is still needed (RunFlags::gone).
  void tell_hosts(HostLookup hosts) { hosts_ = std::move(hosts); }

  // Returns a note for a wait that the caller makes without this class.
  WaitNote note(int peer) const { return {page_->rank(rank_), peer}; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::chrono::nanoseconds waited() const { return waited_; }  // in all `until` calls together
  Status late(int peer, const CollectiveSite& site) const;     // the error after a timeout
  Status gone(int peer, const CollectiveSite& site) const;     // ... if a rank left too early

 private:
  struct Ready {
    const void* object;
    bool (*call)(const void*);
    bool operator()() const { return call(object); }
  };
  Status failure(const CollectiveSite& site) const;
  bool spin(const Ready& ready) const;
  Status sleep(const Ready& ready, int ringer, int peer, const CollectiveSite& site) const;
  std::string process(int rank) const;  // "rank 1 (pid 19297 on node1)"

  const ControlPage* page_;
  int rank_;
  std::chrono::nanoseconds timeout_;
  std::chrono::nanoseconds spin_;
  mutable std::chrono::nanoseconds waited_{0};
  HostLookup hosts_;
};

// Returns the rank to blame if `rank` is late, since `rank` may itself wait for another one. A rank
// that waits is returned only if the chain is a circle.
int end_of_chain(const ControlPage& page, int rank);
bool is_waiting(const RankState& rank);

// Returns "reduce-scatter of unit 2", or "barrier" for a site without a unit.
std::string site_text(const CollectiveSite& site);

// Hints to the processor that this thread waits in a loop (x86/, aarch64/).
void relax();

}  // namespace ofsdp::fsdp
