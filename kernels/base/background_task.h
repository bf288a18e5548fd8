// BackgroundTask: work of one kind that runs while the thread that requests it does other things:
// `request` adds a run, `stop` drops the runs that have not begun and waits for the one that has.
// Runs never overlap, and each sees all writes made before its request. Runs of different tasks do
// overlap.
//
// One thread calls `request` and `stop`; the work runs on a thread that takes no signals. If the
// system has no room for a thread, `request` returns a fault that names the work, and so does every
// later call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::base {

class BackgroundTask {
 public:
  // `thread`: the thread's name, at most 15 characters; `what`: for the message.
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
