// The predicted time of an update, from times of kernels and memory measured on this machine and
// from the network of a topology. `fsdp-run plan` prints it; --strategy auto chooses by it.
#pragma once

#include "runtime/options.h"
#include "runtime/plan/predict/kernel_times.h"
#include "runtime/plan/predict/simulate.h"
#include "runtime/plan/predict/topology.h"

namespace ofsdp::runtime {

struct Machine {
  KernelTimes kernels;
  MachineRates rates;
  std::optional<Topology> topology;  // none: ranks of this host
};

// Returns the seconds of each step.
//
// A node takes the measured time of its kernel, divided by the topology's compute factor.
// Collectives follow the topology's alpha-beta model; without a topology ranks read each other's
// memory, so they take bytes read and written over the measured rate of copies. A gather or
// reduction of a single rank is computation. Newton-Schulz takes the operations of its products
// over the measured rate, on the rank with the most work.
std::vector<StepCost> step_costs(const RunPlan& run, const ProgramPlan& program,
                                 const Machine& machine);

// Returns how often an update runs a program of the full batch; 0 for other programs.
int64_t times_an_update(const ProgramKey& key, const BatchSizes& batch);

Simulation simulate_program(const RunPlan& run, const ProgramPlan& program, const Machine& machine);

double predicted_seconds(const RunPlan& run, const Machine& machine, const BatchSizes& batch);

}  // namespace ofsdp::runtime
