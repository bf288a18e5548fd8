// Runner: the engine of the CPU or a device, the programs bound to this rank's memory, and the
// optimizer.
//
// `runner` refers to plan, setup, communicator and memory, and must not move. Collective. Errors:
// kInput (the device lacks a kernel), kFault.
#pragma once

#include "runtime/engine/cpu_engine.h"
#include "runtime/engine/device/device_engine.h"
#include "runtime/state/run_memory.h"

namespace ofsdp::runtime {

struct Runner {
  std::vector<UnitState> device_units;
  std::unique_ptr<UpdateProgram> update_program;  // for a model with a training_info
  std::unique_ptr<DeviceRules> device_rules;      // the same, if a device runs the update
  std::unique_ptr<OptimizerStep> optimizer;
  std::map<ProgramKey, BoundProgram> programs;
  std::unique_ptr<UpdateRunner> executor;
};

// REQUIRES: the values are loaded.
Status make_runner(const RunPlan& plan, const ModelSetup& setup, Communicator& communicator,
                   RunMemory& memory, const ExecutorOptions& options, Runner& runner);

}  // namespace ofsdp::runtime
