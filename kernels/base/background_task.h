// BackgroundTask: work of one kind that goes on while the thread that asks for it does other
// things: `request` makes one more run of it, `stop` drops the runs that have not begun and waits
// for the one that has. Runs never overlap, and each sees what was written before its request. Runs
// of different tasks do overlap.
//
// Ownership: owns what the work captures. Threads: request and stop by one; the work runs on a
// thread that takes no signals. Errors: kFault of `request`, when the system has no room for a
// thread: it says what could not start, and so does every later one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::base {

class BackgroundTask {
 public:
  // `thread`: its name while it runs, at most 15 characters; `what`: for the message.
  BackgroundTask(const char* thread, std::string what, std::function<void()> work);
  BackgroundTask(const BackgroundTask&) = delete;
  ~BackgroundTask();

  Status request();
  void stop();  // may be called again

 private:
  struct Runs;
  std::string what_;
  std::unique_ptr<Runs> runs_;
};

}  // namespace ofsdp::base
