// Waiting for another rank, and the error when it does not come.
//
// `until` spins a few microseconds, then sleeps on the peer's doorbell, waking at least every
// kSlice to see whether a rank failed, died or left, and whether the timeout is over. Time in
// which this process was itself stopped (Ctrl-Z) does not count.
//
// Ownership: views of the page. Threads: the rank's one communicating thread. Never allocates but
// for an error's text. Errors: kPeer when a rank has reported a failure; kFault when one died, left
// or did not arrive in time, naming it, its pid, step, unit and collective.
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

// Says in the page that this rank waits for `peer`: until it came, and for good where it did not,
// so that those who wait for this rank do not blame it while it reports.
class WaitNote {
 public:
  WaitNote(RankState& me, int peer);
  void look();  // at least every PeerWait::kSlice
  void late();  // it still waits while it finds out for whom
  void met();

 private:
  RankState& me_;
};

// Looks up where ranks are when they are on several hosts; empty functions on one host.
struct HostLookup {
  std::function<std::string(int rank)> name;  // of the rank's host, for messages
  std::function<bool(int rank)> is_here;
  std::function<int(int rank)> blame;  // whom the host of a rank that is late would blame
};

class PeerWait {
 public:
  static constexpr std::chrono::milliseconds kSlice{100};

  PeerWait(const ControlPage* page, int rank, std::chrono::nanoseconds timeout,
           std::chrono::nanoseconds spin)
      : page_(page), rank_(rank), timeout_(timeout), spin_(spin) {}

  // Has the run failed, or a rank died? Cheap: one line that hardly ever changes.
  Status check(const CollectiveSite& site) const {
    const RunFlags& run = page_->run();
    if (run.failed.load(std::memory_order_acquire) == 0 &&
        run.dead.load(std::memory_order_acquire) == 0 &&
        run.gone.load(std::memory_order_acquire) == 0) {
      return {};
    }
    return failure(site);
  }

  // Until `counter`, which `peer` publishes, is at least `target`.
  Status until(const std::atomic<uint64_t>& counter, uint64_t target, int peer,
               const CollectiveSite& site) const {
    auto reached = [&counter, target] { return counter.load(std::memory_order_seq_cst) >= target; };
    return until_ready(reached, peer, peer, site);
  }

  // Until `ready()` of something after whose change `ringer` rings its doorbell. `peer` is to blame
  // where it does not come in time, and where it leaves if it is the ringer.
  template <typename F>
  Status until_ready(const F& ready, int ringer, int peer, const CollectiveSite& site) const {
    if (ready()) return {};
    const auto began = std::chrono::steady_clock::now();
    const Ready call{&ready, [](const void* f) { return (*static_cast<const F*>(f))(); }};
    Status status = spin(call) ? Status{} : sleep(call, ringer, peer, site);
    waited_ += std::chrono::steady_clock::now() - began;
    return status;
  }

  // A remote rank's departure may arrive before its last results, so it does not end the wait; its
  // host reports it when the rank is still needed (RunFlags::gone).
  void tell_hosts(HostLookup hosts) { hosts_ = std::move(hosts); }

  // For a wait that is made without this.
  WaitNote note(int peer) const { return {page_->rank(rank_), peer}; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::chrono::nanoseconds waited() const { return waited_; }  // in all calls of until
  Status late(int peer, const CollectiveSite& site) const;     // the error of a timeout
  Status gone(int peer, const CollectiveSite& site) const;     // ... of a rank that left too early

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

// The rank to blame when `rank` is late: it may itself be waiting for another one. One that waits
// is the end of a chain when those it waits for wait for it.
int end_of_chain(const ControlPage& page, int rank);
bool is_waiting(const RankState& rank);

// "reduce-scatter of unit 2", or "barrier" for a site without a unit.
std::string site_text(const CollectiveSite& site);

}  // namespace ofsdp::fsdp
