// RunMemory: the memory of a rank, mapped by its plan. If a device computes: memory on the device,
// images on the host of everything loaded or saved, and the pinned memory of --cpu-offload.
//
// Must not move, since regions refer to the ledgers. `map` is collective. Errors: kFault if there
// is no memory left, or from the device.
#pragma once

#include "runtime/engine/device/device_offload.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

struct RunMemory {
  RunMemory() = default;
  RunMemory(const RunMemory&) = delete;

  Status map(const RunPlan& plan, Communicator& communicator, MemoryLedger& ledger);
  // Updates the images and waits for the device.
  Status fetch(const RunPlan& plan);
  std::span<std::byte> staging() const;

  MemoryLedger image_ledger;  // images do not count as memory of a step
  Region shared_image;
  RankMemory host;  // with a device: images, and the copy for checkpoints
  DeviceRankMemory device;
  MemoryLedger pinned_ledger;  // memory pinned by --cpu-offload, which is not on the device
  DeviceMemory pinned;
  std::vector<UnitState> units;  // in `host` or `pinned`

 private:
  Status map_images(const RunPlan& plan, MemoryLedger& ledger, bool several);
};

}  // namespace ofsdp::runtime
