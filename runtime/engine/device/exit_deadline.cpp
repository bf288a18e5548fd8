#include "runtime/engine/device/exit_deadline.h"

#include <unistd.h>

#include <utility>

#include "kernels/base/start_thread.h"

namespace ofsdp::runtime {

ExitDeadline::ExitDeadline(std::chrono::milliseconds limit, std::function<int()> status) {
  auto watch = start_thread("ofsdp-deadline", "a deadline", [this, limit, status] {
    std::unique_lock lock(mutex_);
    if (!over_.wait_for(lock, limit, [this] { return done_; })) _exit(status());
  });
  if (!watch.ok()) _exit(status());
  watch_ = std::move(*watch);
}

ExitDeadline::~ExitDeadline() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  over_.notify_one();
  watch_.join();
}

}  // namespace ofsdp::runtime
