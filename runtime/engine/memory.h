// A rank's mapped memory. The regions and their sizes are MemoryMap's (program/memory_map.h); all
// are allocated once, before the first step.
//
//   RankMemory        regions in host memory
//   DeviceRankMemory  the regions that kernels read in device memory (arena, kept, state, shared);
//                     one block per side for inputs, numbers and results; and the loader's staging,
//                     pinned in host memory
//   UnitState         the addresses of a rank's part of one unit
//
// On a device, inputs, numbers and results have two slots, so that the next micro-batch is uploaded
// while the device computes. To load and save weights, the host holds an image (a copy in host
// memory) of kept, state and shared; between loading and saving it returns the image's pages to the
// system.
//
// Device and ledger must outlive the memory. Allocation returns kFault with region and bytes if
// memory runs out, and the device's errors.
#pragma once

#include <array>

#include "kernels/core/device.h"
#include "runtime/compile/program/memory_map.h"

namespace ofsdp::runtime {

// Returns the dtype as a number for device functions (kernels/core/device_values.h).
inline int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

// The addresses of the regions that kernels read.
struct MemoryBases {
  std::byte* arena = nullptr;
  std::byte* kept = nullptr;
  std::byte* state = nullptr;
  std::byte* shared = nullptr;
  std::byte* common = nullptr;
};

// Owns all regions except shared and common, which the communicator owns.
struct RankMemory {
  MemoryBases bases() const { return {arena.data(), kept.data(), state.data(), shared, common}; }

  Region arena, kept, state, staging, checkpoint, trace, metrics, watch;
  std::byte* shared = nullptr;
  std::byte* common = nullptr;

  // Collective. Returns kFault if the system has no memory left.
  static Result<RankMemory> map(const MemoryMap& plan, MemoryLedger& ledger,
                                Communicator& communicator);
};

// Addresses of the rank's part of a unit, null if it lacks the part; UnitPlaces explains each.
struct UnitState {
  float* owned = nullptr;  // float32; on a device with an offload in Plan::rest_dtype instead
  std::vector<StoredState> optimizer;
  std::byte* frozen = nullptr;
  std::byte* rounded = nullptr;
  float* gradient = nullptr;
  std::byte* slot = nullptr;
  int64_t owned_numel = 0;
  int64_t owned_begin = 0;  // first owned element, counted in the flat unit
};

std::vector<UnitState> unit_states(const Plan& plan, int rank, const MemoryMap& offsets,
                                   const MemoryBases& memory);

// Returns the operand's address; null if `memory` does not have the area.
std::byte* address(const MemoryBases& memory, const Operand& operand);

class DeviceRankMemory {
 public:
  // `several`: there are several ranks. Then their devices read each other's arena and shared
  // region.
  static Result<DeviceRankMemory> allocate(Device& device, MemoryLedger& ledger,
                                           const MemoryMap& plan, const DeviceIoMap& io,
                                           bool several);

  MemoryBases bases() const { return {arena_.data(), kept_.data(), state_.data(), shared_.data()}; }
  std::span<std::byte> staging() const { return {staging_.data(), staging_.bytes()}; }
  std::byte* io() const { return io_.data(); }
  std::byte* pinned() const { return pinned_.data(); }

  // Copy kept, state and shared from the images to the device, and back; `kept_alone`: only kept.
  // Both wait for the device.
  Status upload(const RankMemory& images, size_t shared_bytes, bool kept_alone = false);
  Status download(const RankMemory& images, size_t shared_bytes, bool kept_alone = false);

 private:
  struct Pair {
    std::byte* device;
    std::byte* host;
    size_t bytes;
  };
  std::array<Pair, 3> pairs(const RankMemory& images, size_t shared_bytes) const;
  Status move(std::byte* dst, const std::byte* src, size_t bytes, bool up);

  Device* device_ = nullptr;
  size_t bounce_ = 0;
  DeviceMemory arena_, kept_, state_, shared_, io_, staging_, pinned_;
};

}  // namespace ofsdp::runtime
