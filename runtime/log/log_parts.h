// StepTimes: the median wall time of a step in milliseconds, in constant memory and without
// allocating in the loop.
//
// If there are more than six steps, the first three (page faults, cold caches) are left out. Up to
// `most_kept` times, an even number, the median is exact; beyond that every second time is kept,
// then every fourth, ...
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

class StepTimes {
 public:
  static constexpr size_t kMaxKept = 65536;

  explicit StepTimes(size_t most_kept = kMaxKept) : most_kept_(most_kept) {
    kept_.reserve(most_kept);
  }

  void add(double step_ms);
  int64_t count() const { return count_; }
  double median() const;  // NaN if there was no step

 private:
  static constexpr int64_t kWarmup = 3;

  size_t most_kept_;
  double first_[kWarmup] = {};
  std::vector<float> kept_;
  int64_t stride_ = 1;
  int64_t count_ = 0;
};

// Checks and creates the files into which a run writes rows while it trains: --metrics and --trace.
// Like --output they must be new or regular files. Since they are written in place, a link, a
// device, a pipe or a folder is refused before anything is opened; run_files.h refuses files that
// the run reads. Errors: kInput with the flag, the path and the kind found.

Status check_log_target(const char* flag, const std::string& path);

// Creates the empty file `part` next to `path`; follows no link.
Status make_log_part(const char* flag, const std::string& path, const std::string& part);

// StopSignal turns SIGTERM, Ctrl-C, SIGHUP (a closed terminal), SIGQUIT and SIGUSR1 (Slurm's
// --signal) into a wish, which the run reads after an update. If a second signal comes a second or
// more later, it ends the process as usual; a sooner one counts as the same wish.
//
// A process must have at most one, since signal handlers belong to the process. The destructor
// restores the handlers. `number` may be called from any thread.

// The exit status of a process that such a signal has stopped.
constexpr int stopped_status(int number) { return 128 + number; }
// Returns the signal that this exit status stands for; 0: none of them.
int stopped_by(int exit_status);
bool is_stop_signal(int number);

// Blocks these signals or lets them through. A program blocks them while nobody listens yet: a
// signal then waits, instead of ending a process that cannot say where it stopped.
void hold_stop_signals(bool held);

// Returns true if the parent process wants the signal ignored, as nohup does with SIGHUP.
bool is_ignored(int number);

// The kernel drops signals without a handler if the process is number 1 in a container. After this
// call the signals above end such a process with the usual status.
void end_on_signals();

class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  int number() const;  // the signal that came; 0: none

 private:
  std::array<struct sigaction, 5> before_{};
};

}  // namespace ofsdp::runtime
