// StopSignal turns SIGTERM, Ctrl-C, SIGHUP (a closed terminal), SIGQUIT and SIGUSR1 (Slurm's
// --signal) into a wish, which the run reads at the end of an update. If a second signal comes a
// second or more later, it ends the process as usual; a sooner one counts as the same wish.
//
// A process must have at most one, since signal handlers belong to the process. The destructor
// restores the handlers. `heard` may be called from any thread.
#pragma once

#include <array>
#include <csignal>

namespace ofsdp::runtime {

// Returns true if the parent process wants the signal ignored, as nohup does with SIGHUP.
bool is_ignored(int number);

// The kernel drops signals without a handler if the process is number 1 of a container. After this
// call the signals above end such a process with the usual status.
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
