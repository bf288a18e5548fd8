// Compares the kernels in kernels/cuda with the kernels that the table launched. Threads: one.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace ofsdp::races {

// A line for each kernel under `source`/kernels/cuda that is neither in `launched` nor an
// exception. And a line for each exception that is no longer right.
std::vector<std::string> coverage_faults(const std::string& source,
                                         const std::set<const void*>& launched);

}  // namespace ofsdp::races
