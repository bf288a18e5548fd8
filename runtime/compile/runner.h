// From a CompiledRun to a running engine, in two steps: RunMemory::map allocates the rank's memory,
// and, after the caller has loaded the weights, make_runner makes optimizer and engine and binds
// the programs to addresses. RankState (runtime/train) owns both objects.
#pragma once

#include "runtime/compile/compile.h"
#include "runtime/engine/cpu_engine.h"
#include "runtime/engine/device/device_engine.h"
#include "runtime/engine/device/device_offload.h"

namespace ofsdp::runtime {

// A rank's memory. If a device computes, it also has the memory on the device, and `host` has
// images (copies in host memory) of everything that is loaded or saved. Must not move, since
// regions refer to the ledgers.
struct RunMemory {
  RunMemory() = default;
  RunMemory(const RunMemory&) = delete;

  // Collective. Returns kFault if memory runs out, and the device's errors.
  Status map(const CompiledRun& plan, Communicator& communicator, MemoryLedger& ledger);
  // Copies the state on the device into the images, and waits for it.
  Status fetch(const CompiledRun& plan);
  // The same for the values that each rank holds whole (KeptValues), and back to the device.
  Status fetch_kept(const CompiledRun& plan);
  Status store_kept(const CompiledRun& plan);
  std::span<std::byte> staging() const;

  MemoryLedger image_ledger;  // counts the images apart, since steps do not use them
  Region shared_image;
  RankMemory host;  // with a device: the images, trace, metrics and the checkpoint's copy
  DeviceRankMemory device;
  MemoryLedger pinned_ledger;  // counts `pinned`, the host memory of --cpu-offload
  DeviceMemory pinned;
  std::vector<UnitState> units;  // in `host` or `pinned`

 private:
  Status map_images(const CompiledRun& plan, MemoryLedger& ledger, bool several);
};

// An engine and the objects that it refers to. Must not move.
struct Runner {
  std::vector<UnitState> device_units;
  std::unique_ptr<UpdateProgram> update_program;  // the model's own update; or null
  std::unique_ptr<DeviceRules> device_rules;      // the same on a device; or null
  std::unique_ptr<UpdateTable> update_table;
  std::unique_ptr<Updater> updater;  // on the host for the CPU and --cpu-offload
  std::map<ProgramKey, BoundProgram> programs;
  std::unique_ptr<UpdateRunner> executor;
};

// Fills `runner`, which refers to the other arguments; they must outlive it. Collective. REQUIRES:
// the weights are loaded. Returns kInput if the device lacks a kernel.
Status make_runner(const CompiledRun& plan, const ModelSetup& setup, Communicator& communicator,
                   RunMemory& memory, const ExecutorOptions& options, Runner& runner);

}  // namespace ofsdp::runtime
