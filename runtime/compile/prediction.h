// Predicts an update's time from measured kernels, the measured speed of memory, and the
// network of a topology. `fsdp-run plan` prints it; --strategy auto chooses by it.
#pragma once

#include <chrono>
#include <map>

#include "runtime/compile/compile.h"
#include "runtime/compile/simulate.h"
#include "runtime/options.h"

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

// Measures every kernel of the run for at most `budget`: first each operator's largest kernel, then
// the others by size. A kernel runs on scratch memory (floats 0.5, integers 0), once to warm up and
// then for a few milliseconds; the fastest run counts. A kernel is estimated by bytes, at the
// operator's pace, if time runs out, if it fails on these values, or if the operands exceed an
// eighth of the free memory or 512 MiB. Returns kFault if memory cannot be mapped.
Result<KernelTimes> measure_kernels(const CompiledRun& plan, std::chrono::milliseconds budget);

// Work per second of one rank with all threads.
struct MachineRates {
  double copy = 1;      // bytes, read and written
  double update = 1;    // elements of an optimizer's update
  double products = 0;  // floating-point operations of Newton-Schulz; 0: none needed
};

Result<MachineRates> measure_rates(const CompiledRun& plan);

struct Machine {
  KernelTimes kernels;
  MachineRates rates;
  std::optional<Topology> topology;  // none: ranks of this host
};

// Returns the seconds of each step, as rank 0 runs it.
//
// A node takes its kernel's measured time, divided by the topology's compute factor. Collectives
// follow the topology; without one, ranks read each other's memory at the measured rate of copies.
// A gather or reduction of a single rank is computation. Newton-Schulz takes the busiest rank's
// operations at the measured rate.
std::vector<StepCost> step_costs(const CompiledRun& run, const StepProgram& program,
                                 const Machine& machine);

// Returns how often an update runs the program; 0 for a short batch or an evaluation.
int64_t times_an_update(const ProgramKey& key, const BatchSizes& batch);

Simulation simulate_program(const CompiledRun& run, const StepProgram& program,
                            const Machine& machine);

double predicted_seconds(const CompiledRun& run, const Machine& machine, const BatchSizes& batch);

}  // namespace ofsdp::runtime
