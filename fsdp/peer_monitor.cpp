#include "fsdp/peer_monitor.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace ofsdp {
namespace {

// Signals are for the thread that runs the schedule: a thread started meanwhile inherits the mask.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Result<std::unique_ptr<PeerMonitor>> PeerMonitor::start(const ControlPage* page, int rank,
                                                        std::vector<UniqueFd> lifelines) {
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC));
  if (!stop_event.valid()) return fault("eventfd: {}", std::strerror(errno));
  std::unique_ptr<PeerMonitor> monitor(
      new PeerMonitor(page, std::move(lifelines), std::move(stop_event)));
  for (int r = 0; r < page->world(); ++r) {
    const int fd = r == rank ? -1 : monitor->lifelines_[static_cast<size_t>(r)].get();
    monitor->events_.push_back({fd, 0, 0});  // poll skips -1, and reports a hang-up unasked
  }
  monitor->events_.push_back({monitor->stop_event_.get(), POLLIN, 0});
  AllSignalsBlocked blocked;
  try {
    monitor->thread_ = std::thread([raw = monitor.get()] { raw->watch(); });
  } catch (const std::system_error& error) {
    return fault("rank {} cannot start its monitor thread: {}", rank, error.what());
  }
  return monitor;
}

void PeerMonitor::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_event_.get(), &one, sizeof one);
  thread_.join();
}

void PeerMonitor::watch() {
  while (true) {
    if (poll(events_.data(), events_.size(), -1) < 0) continue;  // EINTR
    if (events_.back().revents != 0) return;
    for (size_t r = 0; r + 1 < events_.size(); ++r) {
      if (events_[r].fd < 0 || events_[r].revents == 0) continue;
      if (lost(static_cast<int>(r))) return;
      events_[r].fd = -1;
    }
  }
}

// True when nothing is left to watch for: the first death or failure ends the run.
bool PeerMonitor::lost(int rank) {
  if (page_->run().failed.load() != 0) return true;  // it ends because of what was reported
  if (page_->rank(rank).left.load() != 0) return false;
  page_->note_death(rank);
  return true;
}

}  // namespace ofsdp
