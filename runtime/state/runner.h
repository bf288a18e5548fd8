// Runner: what computes on this rank: the engine of the CPU or of a device, the programs bound to
// the rank's memory, and what updates.
//
// Ownership: make_runner fills in `runner`, which refers to plan, setup, communicator and memory
// and stays where it is. Threads: one. Collective. Errors: kInput (no kernel of the device),
// kFault.
#pragma once

#include "runtime/engine/cpu_engine.h"
#include "runtime/engine/device/device_engine.h"
#include "runtime/state/run_memory.h"

namespace ofsdp::runtime {

struct Runner {
  std::vector<UnitState> device_units;
  std::unique_ptr<UpdateProgram> update_program;  // of a model with a training_info
  std::unique_ptr<DeviceRules> device_rules;      // the same, where a device follows it
  std::unique_ptr<OptimizerStep> optimizer;
  std::map<ProgramKey, BoundProgram> programs;
  std::unique_ptr<UpdateRunner> executor;
};

// Once the values are loaded.
Status make_runner(const RunPlan& plan, const ModelSetup& setup, Communicator& communicator,
                   RunMemory& memory, const ExecutorOptions& options, Runner& runner);

}  // namespace ofsdp::runtime
