// Predicts an update's time from measured kernel times, the measured speed of memory copies, and
// the network of --topology. `fsdp-run plan` prints the prediction; --strategy auto compares
// strategies by it. Only rank 0 measures, before training starts.
#pragma once

#include <chrono>
#include <map>

#include "runtime/compile/compile.h"
#include "runtime/compile/simulate.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

struct KernelTimes {
  std::map<const Kernel*, double> seconds;  // per run of the kernel
  int measured = 0;                         // kernels
  int estimated = 0;

  double of(const Kernel* kernel) const {
    const auto it = seconds.find(kernel);
    return it == seconds.end() ? 0 : it->second;
  }
};

// Measures the kernels of the plans that `times` lacks, for at most `budget` together: first each
// operator's largest kernel, then the others by size. The plans share one KernelCache. A kernel
// runs on scratch memory (floats 0.5, integers 0), once to warm up and then for a few milliseconds;
// the fastest run counts. A kernel is not measured if time runs out, if it fails on these values,
// or if the operands exceed an eighth of the free memory or 512 MiB; then the time is estimated
// from the operands' bytes and the operator's measured bytes per second. Returns kFault if memory
// cannot be mapped.
Status measure_kernels(const std::vector<const CompiledRun*>& plans,
                       std::chrono::milliseconds budget, KernelTimes& times);

// The work that one rank does per second with all of its threads.
struct MachineRates {
  double copy = 1;      // bytes copied; a byte counts when it is read and when it is written
  double update = 1;    // elements updated by the optimizer
  double products = 0;  // floating-point operations in Muon's Newton-Schulz products; 0: not needed
};

Result<MachineRates> measure_rates(const CompiledRun& plan);

struct Machine {
  KernelTimes kernels;
  MachineRates rates;
  std::optional<Topology> topology;  // none: all ranks are on this host
};

// Returns the seconds of each step in the program's schedule, on rank 0.
//
// A node costs the kernel's measured time, divided by the topology's compute factor. A collective
// costs the time by the topology; without one, ranks read each other's memory at the measured copy
// rate. A gather or reduction within one rank counts as computation. Newton-Schulz costs the
// operations of the rank with the most, at the measured rate.
std::vector<StepCost> step_costs(const CompiledRun& run, const StepProgram& program,
                                 const Machine& machine);

// Returns how many times per update the program runs; 0 for a program of a short batch or
// evaluation. With --batch-weights: the program of the rank with the most samples.
int64_t times_an_update(const ProgramKey& key, const CompiledRun& run);

// Predicts the program's steps (simulate.h).
Simulation simulate_program(const CompiledRun& run, const StepProgram& program,
                            const Machine& machine);

// Returns the predicted seconds per update.
double predicted_seconds(const CompiledRun& run, const Machine& machine);

}  // namespace ofsdp::runtime
