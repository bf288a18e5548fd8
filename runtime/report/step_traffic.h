// StepTraffic: the bytes of device memory that a step of a device's schedule reads and writes, by
// its operands: a lower bound for its kernels, of which a product or an attention comes back to
// some, and an upper one where indices pick rows of a table. An update reads what it changes.
// Workspaces, what a rank sends to others, and copies between host and device do not count.
//
// Pure. Errors: none.
#pragma once

#include <vector>

#include "runtime/program/lower.h"

namespace ofsdp::runtime {

struct StepTraffic {
  size_t read = 0, written = 0;
};

// For each step of the schedule that `lowered` was made of.
std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const ProgramPlan& program);

}  // namespace ofsdp::runtime
