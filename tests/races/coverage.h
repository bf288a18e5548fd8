// Compares the kernels of kernels/cuda with those that the table has launched. Threads: one.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace ofsdp::races {

// A line for each kernel under `source`/kernels/cuda that is not among `launched` and not on the
// list of those that need not be, and for each entry of that list that is no longer right.
std::vector<std::string> coverage_faults(const std::string& source,
                                         const std::set<const void*>& launched);

}  // namespace ofsdp::races
