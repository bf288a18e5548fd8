// The ranks of this host: child processes, the same program with the same arguments.
//
// Ranks get their share of this process's cores when there is one for each. They die with the
// launcher, also when it is killed. When one has failed, or `end_soon` was called, the others have
// a few seconds to notice and end; then they are killed, also those that are stopped. One that
// stays stopped for longer than the timeout is killed too, for nobody may be waiting for it. Time
// in which the launcher itself was stopped (Ctrl-Z) does not count.
//
// In a run of several hosts a rank gives its message of a failure to the launcher, through a
// pipe, instead of printing it: so that the launchers print one of all those that hosts have.
//
// Ownership: the child processes and the pipe; none is left after the destructor. Threads: the
// main one (the kernel ties the children's lives to the thread that forks them). Errors: kFault
// when a rank cannot be started.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/cgroup.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/cli/launch/signal_queue.h"

namespace ofsdp::cli {

// The environment of one rank: the launcher's, with torchrun's variables and ours on top
// (docs/launch.md lists them). Owns its texts; `get` is a view.
class RankEnvironment {
 public:
  // `cores`: of each rank, 0 when they share all. `failure_fd`: where it says why it failed, -1: to
  // stderr.
  RankEnvironment(const Assignment& assignment, int local_rank, int local_world, int cores,
                  int failure_fd);
  char* const* get() const { return pointers_.data(); }

 private:
  void set(std::string_view name, std::string_view value);
  void set(std::string_view name, int value) { set(name, std::to_string(value)); }
  void inherit(std::string_view variable);

  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

class HostRanks {
 public:
  // `argv` as main got it, null-terminated.
  HostRanks(const Assignment& assignment, const LaunchPlan& plan, char* const* argv);
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;
  ~HostRanks() { kill_rest(); }

  Status start(const SignalQueue& signals);
  bool reap();  // takes in who has ended; false when nobody is left
  bool failed() const { return failed_; }
  void end_soon();   // the grace begins, unless it has
  void kill_late();  // when it is over; those that are stopped at once
  void send_all(int number) const;
  Outcome outcome() const;
  // Why a rank was killed, where the cgroup says that the kernel has killed for lack of memory.
  std::string memory_hint() const;

 private:
  struct Child {
    pid_t pid = -1;
    bool running = false;
    bool killed_here = false;
    bool stopped = false;
    std::chrono::milliseconds stopped_for{0};
    int wait_status = 0;
  };

  [[noreturn]] void become_rank(size_t rank, pid_t launcher, const SignalQueue& signals,
                                const RankEnvironment& environment) const;
  int cores_of_each() const;
  void look_at(Child& child, std::chrono::milliseconds since);
  void note_failure(const Child& child);
  Status open_pipe();
  void listen();  // to what ranks have said
  std::string why() const;
  std::string name_of(size_t local_rank) const;
  static void end_here(Child& child);
  void kill_rest();

  Assignment assignment_;
  const std::chrono::milliseconds grace_;
  const std::chrono::milliseconds most_stopped_;
  char* const* argv_;
  std::string program_;
  const int64_t oom_kills_ = Cgroup().oom_kills();  // before this attempt
  std::vector<cpu_set_t> shares_;                   // empty: the kernel places them
  std::vector<Child> children_;
  bool failed_ = false;
  UniqueFd heard_, told_;  // the launcher's and the ranks' end of the pipe; one host has none
  std::string said_;       // by ranks
  int reported_ = 0;       // the exit status of the first rank that ended by itself in failure
  std::optional<std::chrono::steady_clock::time_point> end_by_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace ofsdp::cli
