// Signals are for the thread that runs the schedule: a thread that is started while this object
// lives inherits a mask that blocks them all.
//
// The destructor restores the thread's mask.
#pragma once

#include <signal.h>

namespace ofsdp::base {

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

}  // namespace ofsdp::base
