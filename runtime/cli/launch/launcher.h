// Starts the ranks of a run on this host (launch/host_ranks.h), together with the launchers of the
// other hosts where there are several (launch/node_link.h), and starts them again after a failure,
// up to --max-restarts times.
//
// Signals that stop a run (runtime/log/stop_signal.h) are passed on; a run that got one is not
// started again, nor is one whose input is wrong.
//
// Ownership: the child processes are this call's. Threads: the main one; the launcher that hosts
// the meeting of several hosts has another. Errors: kInput, launch options that contradict each
// other or those of another launcher; kFault when the launchers do not meet, a rank cannot be
// started, or was killed and no rank is left that has reported a failure. Else the exit status,
// everything having been printed.
#pragma once

#include "kernels/base/status.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// Whether this command needs a launcher: several ranks, several hosts, or restarts.
bool needs_launcher(const LaunchOptions& options);
// Whether it says where to meet: such a process is a launcher, also when mpirun or srun has started
// it and calls it a rank.
bool names_rendezvous(const LaunchOptions& options);

// `argv` as main got it, null-terminated. The exit status of the run: 0, 1 or 2.
Result<int> launch_ranks(const LaunchPlan& plan, char* const* argv);

}  // namespace ofsdp::cli
