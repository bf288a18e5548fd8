// Signals of a launcher, taken one by one from a descriptor, so that none comes between a look and
// a wait: SIGCHLD and those that stop a run (runtime/log/stop_signal.h).
//
// Ownership: the destructor puts the mask back. Threads: made by the main one before any other
// starts (threads inherit the mask). Errors: none.
#pragma once

#include <signal.h>

#include <chrono>

#include "kernels/base/posix_file.h"

namespace ofsdp::cli {

class SignalQueue {
 public:
  struct Heard {
    int number = 0;             // 0: none
    bool from_process = false;  // not from the terminal, which tells the ranks itself
    bool interrupts() const { return number != 0 && number != SIGCHLD; }
  };

  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue() { restore(); }
  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }  // also between fork, exec

  // Until a signal comes, `fd` (unless -1) can be read, or `patience` is over.
  Heard wait(int fd, std::chrono::milliseconds patience) const;

 private:
  sigset_t before_;
  UniqueFd fd_;
};

}  // namespace ofsdp::cli
