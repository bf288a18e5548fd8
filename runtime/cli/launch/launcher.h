// Starts the ranks of a run on this host, together with the launchers of other hosts if there are
// several (launch/node_link.h), and restarts them after a failure up to --max-restarts times.
//
// Signals that stop a run (runtime/log/log_parts.h) are passed on. A run that got one is not
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
#include "runtime/cli/options/option_reader.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// The cores for each rank on a host. If a machine tells nothing about its cores, they are taken by
// number.

// Deals the logical processors `all` to `nproc` ranks in equal numbers. Each rank gets neighbours:
// threads in a core first, then cores in a memory node, then in a socket. Empty if there are fewer
// processors than ranks; then the kernel places the ranks. `root`: the folder that contains /sys,
// for tests.
std::vector<cpu_set_t> core_shares(const cpu_set_t& all, int nproc, const std::string& root = "");

// Returns true for several ranks, several hosts or restarts.
bool needs_launcher(const LaunchOptions& options);
// Returns true if the options say where to meet. Such a process is a launcher, even if mpirun or
// srun started it as a rank.
bool names_rendezvous(const LaunchOptions& options);

// `argv` as in main. Returns the run's exit status: 0, 1, 2, or that of a run which a signal has
// stopped (runtime/log/log_parts.h).
Result<int> launch_ranks(const LaunchPlan& plan, char* const* argv);

// A run's hosts: DeepSpeed's hostfile (lines `HOST slots=N`, # comments) with filters, and the
// other options that say where launchers meet.
//
// A filter is HOST[:SLOT,SLOT][@HOST...]; without slots it means all slots on that host. Slots are
// GPUs if the host has any, else ranks. --nnodes and --nproc-per-node limit the hosts and the slots
// of each. Errors: kInput with file and line, or the flag.

inline constexpr const char* kDeepSpeedHostfile = "/job/hostfile";

Result<std::vector<HostSlots>> read_hostfile(const std::string& path);

// Returns the hosts that pass the filters, ordered as in `hosts`; both filters may be empty.
Result<std::vector<HostSlots>> filtered_hosts(std::vector<HostSlots> hosts,
                                              const std::string& include,
                                              const std::string& exclude);

// Resolves hostfile, filters, --standalone, --master-addr and port 0 into `hosts`, nnodes,
// nproc_per_node and rdzv_endpoint. Warns about options without effect.
Status resolve_meeting(LaunchOptions& launch, OptionReader& reader);

// Returns true if this command starts a launcher on each host.
bool starts_hosts(const LaunchOptions& launch);

// Starts a launcher on each --hostfile host through --rsh (ssh) and waits for all.
//
// A host runs this command in the same folder, by the same program, as `/bin/sh -c TEXT`, with a
// --node-rank and --nproc-per-node for that host. The first host hosts the meeting unless the
// command says another. Our environment variables, OpenMP's, NCCL's and the library path are passed
// on. The job's secret (drawn if there is none) goes over standard input, never in a command line.
//
// If standard input closes, for example because this process is killed, the host's launcher gets
// SIGTERM. The same happens if a signal stops the run; a second signal ends the --rsh processes.
// Errors: kFault if --rsh cannot be started or fails by itself (255, like ssh). Else returns the
// launchers' largest exit status.

// `argv` as in main. REQUIRES: starts_hosts(launch).
Result<int> launch_hosts(const LaunchOptions& launch, char* const* argv);

// Returns the --rsh words for host `node`, the host and the text for its shell.
std::vector<std::string> remote_command(const LaunchOptions& launch, size_t node,
                                        const std::string& program,
                                        const std::vector<std::string>& arguments,
                                        const std::string& run_id);

std::string slots_text(const HostSlots& host);  // "0,2"

}  // namespace ofsdp::cli
