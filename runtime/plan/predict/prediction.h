// predict: what an update of a plan is expected to take, from what kernels and memory take here and
// what the network of a topology adds. `fsdp-run plan` shows it, --strategy auto chooses by it.
//
// Pure. Errors: none.
#pragma once

#include "runtime/options.h"
#include "runtime/plan/predict/step_costs.h"

namespace ofsdp::runtime {

// How often a program of the full batch runs in an update; 0 for other programs.
int64_t times_an_update(const ProgramKey& key, const BatchSizes& batch);

Simulation simulate_program(const RunPlan& run, const ProgramPlan& program, const Machine& machine);

double predicted_seconds(const RunPlan& run, const Machine& machine, const BatchSizes& batch);

}  // namespace ofsdp::runtime
