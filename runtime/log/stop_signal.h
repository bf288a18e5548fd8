// StopSignal: SIGTERM, Ctrl-C, SIGHUP (a closed terminal), SIGQUIT and SIGUSR1 (Slurm's --signal)
// as a wish that the run hears at the end of an update, instead of its end. A second one, a second
// or more after the first, ends the process as usual; one that comes sooner is the same wish by
// another way.
//
// One at a time in a process, since a signal's handler belongs to the process; the flag it sets is
// the one variable of static storage that this needs. Ownership: the destructor puts back what was
// there before. Threads: made and destroyed by one; `heard` by any.
#pragma once

#include <array>
#include <csignal>

namespace ofsdp::runtime {

// Whether who started this process wants it to ignore the signal, as nohup does with SIGHUP.
bool is_ignored(int number);

// The kernel drops signals to process 1 of a container that have no handler: from here on those
// above end it with their usual status.
void end_on_signals();

class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  bool heard() const;

 private:
  std::array<struct sigaction, 5> before_{};
};

}  // namespace ofsdp::runtime
