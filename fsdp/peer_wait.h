// Waiting for another rank, and what is said when it does not come.
//
// `until` spins a few microseconds, then sleeps on the peer's bell, waking at least every kSlice to
// see whether a rank failed, died or left, and whether the timeout is over. Time in which this
// process was itself stopped (Ctrl-Z) does not count.
//
// Ownership: views of the page. Threads: the rank's one communicating thread. Never allocates but
// for an error's text. Errors: kPeer when a rank has reported a failure; kFault when one died, left
// or did not arrive in time, naming it, its pid, step, unit and collective.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "fsdp/communicator.h"
#include "fsdp/control_page.h"
#include "kernels/core/status.h"

namespace ofsdp {

class PeerWait {
 public:
  static constexpr std::chrono::milliseconds kSlice{100};

  PeerWait(const ControlPage* page, int rank, std::chrono::nanoseconds timeout,
           std::chrono::nanoseconds spin)
      : page_(page), rank_(rank), timeout_(timeout), spin_(spin) {}

  // Has the run failed, or a rank died? Cheap: one line that hardly ever changes.
  Status check(const CollectiveSite& site) const {
    const RunState& run = page_->run();
    if (run.failed.load(std::memory_order_acquire) == 0 &&
        run.dead.load(std::memory_order_acquire) == 0) {
      return {};
    }
    return failure(site);
  }

  // Until `counter`, which `peer` publishes, is at least `target`.
  Status until(const std::atomic<uint64_t>& counter, uint64_t target, int peer,
               const CollectiveSite& site) const {
    if (counter.load(std::memory_order_acquire) >= target) return {};
    const auto began = std::chrono::steady_clock::now();
    Status status = spin(counter, target) ? Status{} : sleep(counter, target, peer, site);
    waited_ += std::chrono::steady_clock::now() - began;
    return status;
  }

  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::chrono::nanoseconds waited() const { return waited_; }  // in all calls of until
  Status late(int peer, const CollectiveSite& site) const;     // the error of a timeout
  Status gone(int peer, const CollectiveSite& site) const;     // ... of a rank that left too early

 private:
  Status failure(const CollectiveSite& site) const;
  bool spin(const std::atomic<uint64_t>& counter, uint64_t target) const;
  Status sleep(const std::atomic<uint64_t>& counter, uint64_t target, int peer,
               const CollectiveSite& site) const;

  const ControlPage* page_;
  int rank_;
  std::chrono::nanoseconds timeout_;
  std::chrono::nanoseconds spin_;
  mutable std::chrono::nanoseconds waited_{0};
};

// "reduce-scatter of unit 2", or "barrier" for a site without a unit.
std::string site_text(const CollectiveSite& site);

}  // namespace ofsdp
