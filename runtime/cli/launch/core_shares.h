// The cores that a host's ranks get each.
//
// Threads: any. Errors: none; a machine that tells nothing about its cores has them in the order of
// their numbers.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace ofsdp::cli {

// Deals the logical processors `all` to `nproc` ranks, as many to each as divides, neighbours
// together: threads of a core first, then cores of a memory node, then those of a socket. Empty
// when there is not one for each: then the kernel places the ranks. `root`: the folder that has
// /sys, for tests.
std::vector<cpu_set_t> core_shares(const cpu_set_t& all, int nproc, const std::string& root = "");

}  // namespace ofsdp::cli
