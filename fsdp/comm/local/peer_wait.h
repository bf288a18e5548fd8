// PeerWait: blocks until another rank has done something, and finds out why if it does not happen.
// Each rank's communicator owns one; only the thread that runs the schedule may call it.
//
// A wait spins a few microseconds, then sleeps on a doorbell: a word in the control page (shared
// memory of the ranks on one host) that a rank changes whenever it has changed a counter. The wait
// wakes at least every kSlice to check for failures and for the timeout. Time in which this process
// was stopped (Ctrl-Z) does not count.
//
// Waits return kPeer if a rank has reported an error. They return kFault, naming rank, pid, step,
// unit and collective, if a rank died, if a rank ended although others need it, or on a timeout.
// Other ranks learn of it once the caller passes the error to Communicator::fail. Only errors
// allocate.
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

// A note in the control page: this rank (`me`) waits for rank `peer`. Other ranks that wait for
// this one read the note and blame `peer` instead. A note expires five slices after the last
// renew(), so that a stopped process does not count as waiting. On an error do not clear the note.
class WaitNote {
 public:
  WaitNote(RankState& me, int peer);
  // Call at least every PeerWait::kSlice.
  void renew();
  // Call on a timeout: keeps the note for 10 s, in which this rank finds the culprit.
  void extend();
  // Call if the wait succeeded.
  void clear();

 private:
  RankState& me_;
};

// Looks up ranks on several hosts. All functions are empty if the run has one host.
struct HostLookup {
  std::function<std::string(int rank)> name;  // the name of the rank's host, for messages
  std::function<bool(int rank)> is_here;      // whether the rank is on this host
  std::function<int(int rank)> blame;         // asks the rank's host which rank keeps it waiting
};

class PeerWait {
 public:
  static constexpr std::chrono::milliseconds kSlice{100};

  // `timeout`: how long a rank may be late; `spin`: how long a wait spins before it sleeps.
  PeerWait(const ControlPage* page, int rank, std::chrono::nanoseconds timeout,
           std::chrono::nanoseconds spin)
      : page_(page), rank_(rank), timeout_(timeout), spin_(spin) {}

  // Returns an error if the wait is vain, because a rank has failed (reported an error), has died
  // (ended without a report) or is gone (ended in order, on another host, while a rank still needs
  // it). Cheap: reads one cache line that hardly ever changes.
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

  // Blocks until ready() returns true. `ringer`: the rank whose doorbell rings after each change
  // that ready() depends on; this rank itself if its link thread makes the change. `peer`: the rank
  // that causes the change in the end. On a timeout the error blames `peer`, or the rank that
  // `peer` waits for. If `peer` is the ringer, its orderly end is an error at once; any other
  // ringer's is not.
  template <typename F>
  Status until_ready(const F& ready, int ringer, int peer, const CollectiveSite& site) const {
    if (ready()) return {};
    const auto began = std::chrono::steady_clock::now();
    const Ready call{&ready, [](const void* f) { return (*static_cast<const F*>(f))(); }};
    Status status = spin(call) ? Status{} : sleep(call, ringer, peer, site);
    waited_ += std::chrono::steady_clock::now() - began;
    return status;
  }

  // Call before the first wait if the run has several hosts. The end of a rank on another host is
  // then not an error, because the news may overtake the rank's last results on the network.
  // Instead that host sets RunFlags::gone if a request still needs the rank.
  void set_hosts(HostLookup hosts) { hosts_ = std::move(hosts); }

  // Returns a note for a caller that waits by other means, such as a socket.
  WaitNote note(int peer) const { return {page_->rank(rank_), peer}; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::chrono::nanoseconds waited() const { return waited_; }  // in all waits so far
  // Return the error for a timeout, which names the rank to blame, and for a rank that has ended
  // too early.
  Status timeout_error(int peer, const CollectiveSite& site) const;
  Status departure_error(int peer, const CollectiveSite& site) const;

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

// Returns the rank to blame if `rank` is late: follows the notes (`rank` waits for a, a waits for
// b, ...) to the first rank without one. Returns a rank that waits only if the notes form a circle.
int end_of_chain(const ControlPage& page, int rank);
// Returns whether the rank's note has not expired.
bool is_waiting(const RankState& rank);

// Returns "reduce-scatter of unit 2", or "barrier" for a site without a unit.
std::string site_text(const CollectiveSite& site);

// Hints to the processor that this thread waits in a loop (x86/, aarch64/).
void relax();

}  // namespace ofsdp::fsdp
