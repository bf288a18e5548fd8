// Starts the launcher of each host of --hostfile through --rsh (ssh), and waits for them all.
//
// A host runs this command in the same folder, by the same program, as `/bin/sh -c TEXT`, with its
// own --node-rank and --nproc-per-node; the first host is the meeting's unless the command says
// another. Environment variables of ours, OpenMP's, NCCL's and the path of libraries go along. The
// job's secret does too, over standard input and never in a command line; without one it is drawn.
//
// Standard input also ties the hosts to this process: when it closes, as it does when this process
// is killed, the launcher of the host gets SIGTERM. A signal that stops a run does the same; a
// second one ends the --rsh processes.
//
// Ownership: the child processes. Threads: the main one. Errors: kFault when --rsh cannot be
// started or ends in failure itself (255, as ssh says it); else the launchers' greatest status.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// `argv` as main got it, null-terminated. REQUIRES: starts_hosts(launch).
Result<int> launch_hosts(const LaunchOptions& launch, char* const* argv);

// The words of --rsh, the host and the text for its shell, which host `node` gets.
std::vector<std::string> remote_command(const LaunchOptions& launch, size_t node,
                                        const std::string& program,
                                        const std::vector<std::string>& arguments,
                                        const std::string& run_id);

std::string slots_text(const HostSlots& host);  // "0,2"

}  // namespace ofsdp::cli
