// RunMemory: the memory of a rank, mapped from its plan. Where a device computes: the device's,
// with images on the host of what is loaded and saved, and what --cpu-offload pins.
//
// Ownership: owns it all; stays where it is, since its regions refer to its ledgers. Threads: one.
// `map` is collective. Errors: kFault when there is no memory left; what the device says.
#pragma once

#include "runtime/engine/device/device_offload.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

struct RunMemory {
  RunMemory() = default;
  RunMemory(const RunMemory&) = delete;

  Status map(const RunPlan& plan, Communicator& communicator, MemoryLedger& ledger);
  // Brings the images up to date; waits for the device.
  Status fetch(const RunPlan& plan);
  std::span<std::byte> staging() const;

  MemoryLedger image_ledger;  // images are no memory of a step: their pages are the system's
  Region shared_image;
  RankMemory host;  // with a device: images, and the checkpoint's copy
  DeviceRankMemory device;
  MemoryLedger pinned_ledger;  // of what --cpu-offload pins, which is no memory of a device
  DeviceMemory pinned;
  std::vector<UnitState> units;  // in `host`, or pinned

 private:
  Status map_images(const RunPlan& plan, MemoryLedger& ledger, bool several);
};

}  // namespace ofsdp::runtime
