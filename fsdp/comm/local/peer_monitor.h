// Watches the liveness pipes of the other ranks: pipes whose write end only that rank holds, so the
// kernel closes them however it ends. The thread sleeps in poll and uses no processor time.
//
// A rank whose liveness pipe closes though it neither left in order nor anybody failed is entered
// in the control page as dead, and every waiter is woken.
//
// Ownership: owns the liveness pipes and its thread; the page must outlive it. Threads: started and
// stopped by one. Errors: kFault when the system gives no thread or descriptor.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/fd_channel.h"
#include "fsdp/comm/local/rendezvous.h"
#include "kernels/base/start_thread.h"

namespace ofsdp::fsdp {

class PeerMonitor {
 public:
  // `liveness_pipes[i]` is the read end of that of self.ranks[i]; this rank's own is not watched.
  static Result<std::unique_ptr<PeerMonitor>> start(const ControlPage* page, const LocalRank& self,
                                                    std::vector<UniqueFd> liveness_pipes) {
    UniqueFd stop_event(eventfd(0, EFD_CLOEXEC));
    if (!stop_event.valid()) return fault("eventfd: {}", std::strerror(errno));
    std::unique_ptr<PeerMonitor> monitor(
        new PeerMonitor(page, self.ranks, std::move(liveness_pipes), std::move(stop_event)));
    for (int p = 0; p < self.here(); ++p) {
      const int fd = p == self.place ? -1 : monitor->liveness_pipes_[static_cast<size_t>(p)].get();
      monitor->events_.push_back({fd, 0, 0});  // poll skips -1, and reports a hang-up unasked
    }
    monitor->events_.push_back({monitor->stop_event_.get(), POLLIN, 0});
    auto started = start_thread("ofsdp-peers", "the monitor of peers",
                                [raw = monitor.get()] { raw->watch(); });
    if (!started.ok()) {  // the others meet, and hear it from the page
      if (page->claim_failure(self.rank(), 1)) return std::move(started).status();
      return Status(ErrorKind::kPeer, "another rank has failed");
    }
    monitor->thread_ = *std::move(started);
    return monitor;
  }

  ~PeerMonitor() { stop(); }
  // Returns when the thread has ended; may be called again.
  void stop() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_event_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  PeerMonitor(const ControlPage* page, std::vector<int> ranks, std::vector<UniqueFd> liveness_pipes,
              UniqueFd stop_event)
      : page_(page),
        ranks_(std::move(ranks)),
        liveness_pipes_(std::move(liveness_pipes)),
        stop_event_(std::move(stop_event)) {}
  void watch() {
    while (true) {
      if (poll(events_.data(), events_.size(), -1) < 0) continue;  // EINTR
      if (events_.back().revents != 0) return;
      for (size_t p = 0; p + 1 < events_.size(); ++p) {
        if (events_[p].fd < 0 || events_[p].revents == 0) continue;
        if (lost(ranks_[p])) return;
        events_[p].fd = -1;
      }
    }
  }

  // True when nothing is left to watch for: the first death or failure ends the run.
  bool lost(int rank) {
    if (page_->run().failed.load() != 0) return true;  // it ends because of what was reported
    if (page_->rank(rank).left.load() != 0) return false;
    page_->note_death(rank);
    return true;
  }

  const ControlPage* page_;
  std::vector<int> ranks_;
  std::vector<UniqueFd> liveness_pipes_;
  UniqueFd stop_event_;
  std::vector<pollfd> events_;  // one a rank, the stop event last
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
