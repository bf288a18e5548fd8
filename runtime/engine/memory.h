// A rank's mapped memory: RankMemory on the host, DeviceRankMemory on a device. UnitState:
// addresses of a unit's part. Everything is allocated once, as MemoryMap says.
//
// DeviceRankMemory holds the regions that kernels read, and a block for inputs and outputs. On the
// host it pins the loader's staging and the block's other end.
//
// Inputs, numbers and results have two slots: the next micro-batch is uploaded while the device
// computes. To load and save, the host keeps an image of kept, state and shared; between these it
// returns the pages to the system.
//
// Device and ledger must outlive it. Returns kFault with region and bytes if memory runs out, and
// the device's errors.
#pragma once

#include <array>

#include "kernels/core/device.h"
#include "runtime/compile/program/memory_map.h"

namespace ofsdp::runtime {

// Returns a dtype's number in the device table.
inline int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

// Addresses of the regions that kernels read.
struct MemoryBases {
  std::byte* arena = nullptr;
  std::byte* kept = nullptr;
  std::byte* state = nullptr;
  std::byte* shared = nullptr;
  std::byte* common = nullptr;
};

// Owns all regions except shared and common, which are the communicator's.
struct RankMemory {
  MemoryBases bases() const { return {arena.data(), kept.data(), state.data(), shared, common}; }

  Region arena, kept, state, staging, checkpoint, trace, metrics, watch;
  std::byte* shared = nullptr;
  std::byte* common = nullptr;

  // Collective. Returns kFault if the system has no memory left.
  static Result<RankMemory> map(const MemoryMap& plan, MemoryLedger& ledger,
                                Communicator& communicator);
};

// UnitPlaces as addresses.
struct UnitState {
  float* owned = nullptr;  // on a device with an offload: in Plan::rest_dtype
  std::vector<StoredState> optimizer;
  std::byte* frozen = nullptr;
  std::byte* rounded = nullptr;
  float* gradient = nullptr;
  std::byte* slot = nullptr;
  int64_t owned_numel = 0;
  int64_t owned_begin = 0;  // index in the unit
};

std::vector<UnitState> unit_states(const Plan& plan, int rank, const MemoryMap& offsets,
                                   const MemoryBases& memory);

// Returns the operand's address; null if `memory` does not have the area.
std::byte* address(const MemoryBases& memory, const Operand& operand);

class DeviceRankMemory {
 public:
  // `several`: there are several ranks; they read each other's arena and shared region.
  static Result<DeviceRankMemory> allocate(Device& device, MemoryLedger& ledger,
                                           const MemoryMap& plan, const DeviceIoMap& io,
                                           bool several);

  MemoryBases bases() const { return {arena_.data(), kept_.data(), state_.data(), shared_.data()}; }
  std::span<std::byte> staging() const { return {staging_.data(), staging_.bytes()}; }
  std::byte* io() const { return io_.data(); }
  std::byte* pinned() const { return pinned_.data(); }

  // Copy kept, state and shared to and from their images. Both wait for the device.
  Status upload(const RankMemory& images, size_t shared_bytes);
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
