// Ends the process, as it is, where something takes longer than it may: what a driver's call does
// not come back from.
//
// Ownership: lives around the calls. Threads: the caller's, and one of its own; `status` is called
// on that. Without room for a thread the process ends at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace ofsdp::runtime {

class ExitDeadline {
 public:
  // Buffered output is not written, and destructors do not run: all has been said before.
  ExitDeadline(std::chrono::milliseconds limit, std::function<int()> status);
  ExitDeadline(const ExitDeadline&) = delete;
  ~ExitDeadline();

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread watch_;
};

}  // namespace ofsdp::runtime
