// The hosts of a run: DeepSpeed's hostfile (lines `HOST slots=N`, # comments) with filters, and the
// other options that say where launchers meet.
//
// A filter is HOST[:SLOT,SLOT][@HOST...]; without slots it means all slots of that host. Slots are
// GPUs if the host has any, else ranks. --nnodes and --nproc-per-node limit the hosts and the slots
// of each. Errors: kInput with file and line, or the flag.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/cli/options/option_reader.h"
#include "runtime/options.h"

namespace ofsdp::cli {

inline constexpr const char* kDeepSpeedHostfile = "/job/hostfile";

Result<std::vector<HostSlots>> read_hostfile(const std::string& path);

// Returns the hosts that pass the filters, in the order of `hosts`; both filters may be empty.
Result<std::vector<HostSlots>> filtered_hosts(std::vector<HostSlots> hosts,
                                              const std::string& include,
                                              const std::string& exclude);

// Resolves hostfile, filters, --standalone, --master-addr and port 0 into `hosts`, nnodes,
// nproc_per_node and rdzv_endpoint. Warns about options without effect.
Status resolve_meeting(LaunchOptions& launch, OptionReader& reader);

// Returns true if this command starts a launcher on each host.
bool starts_hosts(const LaunchOptions& launch);

// Starts the launcher of each host of --hostfile through --rsh (ssh) and waits for all.
//
// A host runs this command in the same folder, by the same program, as `/bin/sh -c TEXT`, with a
// --node-rank and --nproc-per-node for that host. The first host hosts the meeting unless the
// command says another. Our environment variables and those of OpenMP, NCCL and the library path
// are passed on. The secret of the job (drawn if there is none) goes over standard input, never in
// a command line.
//
// If standard input closes, for example because this process is killed, the launcher of the host
// gets SIGTERM. The same happens if a signal stops the run; a second signal ends the --rsh
// processes. Errors: kFault if --rsh cannot be started or fails by itself (255, like ssh). Else
// returns the largest exit status of the launchers.

// `argv` as in main. REQUIRES: starts_hosts(launch).
Result<int> launch_hosts(const LaunchOptions& launch, char* const* argv);

// Returns the words of --rsh for host `node`, the host and the text for its shell.
std::vector<std::string> remote_command(const LaunchOptions& launch, size_t node,
                                        const std::string& program,
                                        const std::vector<std::string>& arguments,
                                        const std::string& run_id);

std::string slots_text(const HostSlots& host);  // "0,2"

}  // namespace ofsdp::cli
