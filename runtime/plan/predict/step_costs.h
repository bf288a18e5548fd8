// step_costs: what each step of a program is expected to take, in seconds.
//
// Nodes take what their kernels took here, divided by the topology's compute factor. Collectives
// follow the topology's alpha-beta model, or without one the memory of this host, through which its
// ranks read each other: bytes read and written over the measured rate of copying. A gather or
// reduction of one rank alone (it converts) is computation. Newton-Schulz takes the operations of
// its products over the measured rate of products, on the rank that has most of them.
//
// Pure.
#pragma once

#include "runtime/plan/predict/kernel_times.h"
#include "runtime/plan/predict/simulate.h"
#include "runtime/plan/predict/topology.h"

namespace ofsdp::runtime {

struct Machine {
  KernelTimes kernels;
  MachineRates rates;
  std::optional<Topology> topology;  // none: ranks of this host
};

std::vector<StepCost> step_costs(const RunPlan& run, const ProgramPlan& program,
                                 const Machine& machine);

}  // namespace ofsdp::runtime
