// From a CompiledRun to a running engine: RunMemory maps the bytes, make_runner makes the engine
// and the optimizer and binds the programs to addresses.
#pragma once

#include "runtime/compile/compile.h"
#include "runtime/engine/cpu_engine.h"
#include "runtime/engine/device/device_engine.h"
#include "runtime/engine/device/device_offload.h"

namespace ofsdp::runtime {

// A rank's memory. If a device computes: memory on the device, images on the host of
// everything that is loaded or saved, and the pinned memory of --cpu-offload. Must not move, since
// regions refer to the ledgers.
struct RunMemory {
  RunMemory() = default;
  RunMemory(const RunMemory&) = delete;

  // Collective. Returns kFault if memory runs out, and the device's errors.
  Status map(const CompiledRun& plan, Communicator& communicator, MemoryLedger& ledger);
  // Copies from the device into the images and waits.
  Status fetch(const CompiledRun& plan);
  std::span<std::byte> staging() const;

  MemoryLedger image_ledger;  // images do not count as memory of a step
  Region shared_image;
  RankMemory host;  // with a device: the images, trace, metrics and the checkpoint's copy
  DeviceRankMemory device;
  MemoryLedger pinned_ledger;  // memory pinned by --cpu-offload, which is not on the device
  DeviceMemory pinned;
  std::vector<UnitState> units;  // in `host` or `pinned`

 private:
  Status map_images(const CompiledRun& plan, MemoryLedger& ledger, bool several);
};

// Must not move.
struct Runner {
  std::vector<UnitState> device_units;
  std::unique_ptr<UpdateProgram> update_program;  // if the model has a training_info
  std::unique_ptr<DeviceRules> device_rules;      // the same, on a device
  std::unique_ptr<UpdateTable> update_table;
  std::unique_ptr<Updater> updater;  // on the host if it updates for a device
  std::map<ProgramKey, BoundProgram> programs;
  std::unique_ptr<UpdateRunner> executor;
};

// Fills `runner`, which then refers to the other arguments. Collective. REQUIRES: weights are
// loaded. Returns kInput if the device lacks a kernel.
Status make_runner(const CompiledRun& plan, const ModelSetup& setup, Communicator& communicator,
                   RunMemory& memory, const ExecutorOptions& options, Runner& runner);

}  // namespace ofsdp::runtime
