// Starts the ranks of a run on this host, together with the launchers of other hosts if there are
// several (launch/node_link.h), and restarts them after a failure up to --max-restarts times.
//
// Signals that stop a run (runtime/log/stop_signal.h) are passed on. A run that got one is not
// restarted, nor is one with a wrong input.
//
// Must be called by the main thread; the launcher that hosts the meeting of several hosts has a
// second thread. Errors: kInput if launch options contradict each other or another launcher; kFault
// if the launchers do not meet, a rank cannot be started, or a rank was killed and none is left to
// report a failure. Otherwise everything has been printed, and the exit status is returned.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// The cores for each rank of a host. If a machine tells nothing about its cores, they are taken in
// the order of their numbers.

// Deals the logical processors `all` to `nproc` ranks in equal numbers. Each rank gets neighbours:
// threads of a core first, then cores of a memory node, then of a socket. Empty if there are fewer
// processors than ranks; then the kernel places the ranks. `root`: the folder that contains /sys,
// for tests.
std::vector<cpu_set_t> core_shares(const cpu_set_t& all, int nproc, const std::string& root = "");

// Returns true for several ranks, several hosts or restarts.
bool needs_launcher(const LaunchOptions& options);
// Returns true if the options say where to meet. Such a process is a launcher, even if mpirun or
// srun started it as a rank.
bool names_rendezvous(const LaunchOptions& options);

// `argv` as in main. Returns the exit status of the run: 0, 1 or 2.
Result<int> launch_ranks(const LaunchPlan& plan, char* const* argv);

}  // namespace ofsdp::cli
