// The hosts of a run: DeepSpeed's hostfile (lines of `HOST slots=N`, # comments) with its filters,
// and the other ways to say where launchers meet.
//
// A filter is HOST[:SLOT,SLOT][@HOST...]; without slots all of that host. Slots are GPUs where the
// host has any, else ranks. --nnodes and --nproc-per-node next to a hostfile say how many of its
// hosts, and of the slots of each, the run takes at most.
//
// Errors: kInput naming file and line, or the flag.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {

inline constexpr const char* kDeepSpeedHostfile = "/job/hostfile";

Result<std::vector<HostSlots>> read_hostfile(const std::string& path);

// Keeps what the filters say, in the order of `hosts`; both are empty where nothing was said.
Result<std::vector<HostSlots>> filtered_hosts(std::vector<HostSlots> hosts,
                                              const std::string& include,
                                              const std::string& exclude);

// Resolves hostfile, filters, --standalone, --master-addr and a port of 0: afterwards `hosts`,
// nnodes, nproc_per_node and rdzv_endpoint say it all. Warns of what has no effect.
Status resolve_meeting(LaunchOptions& launch, OptionReader& reader);

// Whether this command starts a launcher on each of its hosts.
bool starts_hosts(const LaunchOptions& launch);

}  // namespace ofsdp::cli
