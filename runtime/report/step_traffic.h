// StepTraffic: the bytes of device memory that a step reads and writes, by the operands of its
// operations. A lower bound for kernels that read operands several times (products, attention), an
// upper bound for kernels that read some rows of a table. Workspaces, messages to other ranks and
// copies between host and device do not count.
#pragma once

#include <vector>

#include "runtime/program/lower.h"

namespace ofsdp::runtime {

struct StepTraffic {
  size_t read = 0, written = 0;
};

// Returns the traffic of each step of the program's schedule.
std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const ProgramPlan& program);

}  // namespace ofsdp::runtime
