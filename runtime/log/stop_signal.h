// StopSignal: SIGTERM and Ctrl-C as a wish that the run hears at the end of an update, instead of
// its end. A second one, a second or more after the first, ends the process as usual; one that
// comes sooner is the same wish by another way.
//
// One at a time in a process, since a signal's handler belongs to the process; the flag it sets is
// the one variable of static storage that this needs. Ownership: the destructor puts back what was
// there before. Threads: made and destroyed by one; `heard` by any.
#pragma once

#include <csignal>

namespace ofsdp::runtime {

class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  bool heard() const;

 private:
  struct sigaction before_term_ {};
  struct sigaction before_interrupt_ {};
};

}  // namespace ofsdp::runtime
