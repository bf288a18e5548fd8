// KernelTimes: what each kernel of a plan takes on this machine, for `fsdp-run plan`.
//
// Equal problems share a kernel and so one measurement. A kernel runs on scratch memory whose
// floats are 0.5 and whose integers are 0 (first row of a table, first class), once to warm up and
// then for a few milliseconds; the fastest run counts. The whole takes at most `budget`: the
// largest kernel of each operator, then the others, largest first; those that are left, that fail
// on such values, or that do not fit into the scratch memory (an eighth of what is free, 512 MiB at
// most) are estimated from their bytes, at the speed of measured kernels of the same operator.
//
// Ownership: maps its scratch memory for the time of the measurement. Threads: one; kernels may
// fan out. Errors: kFault (memory).
#pragma once

#include <chrono>
#include <map>

#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

struct KernelTimes {
  std::map<const Kernel*, double> seconds;
  int measured = 0;
  int estimated = 0;

  double of(const Kernel* kernel) const {
    const auto it = seconds.find(kernel);
    return it == seconds.end() ? 0 : it->second;
  }
};

Result<KernelTimes> measure_kernels(const RunPlan& plan, std::chrono::milliseconds budget);

// The work that this machine does in a second, with the threads of a rank.
struct MachineRates {
  double copy = 1;      // bytes read and bytes written, together
  double update = 1;    // elements of the optimizer's update
  double products = 0;  // operations of Newton-Schulz, as the costliest matrix has them; 0: none
};

Result<MachineRates> measure_rates(const RunPlan& plan);

}  // namespace ofsdp::runtime
