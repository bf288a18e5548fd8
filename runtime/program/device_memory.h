// DeviceRankMemory: the memory of a rank on a device. Holds the regions of RankMemoryPlan that
// kernels read, and a block for inputs and outputs. On the host it pins the loader's staging and
// the other end of that block. Everything is allocated once, from the plan.
//
// Inputs, numbers and results have two slots: the next micro-batch is uploaded while the device
// computes. To load and save, the host keeps an image of kept, state and shared; between these it
// returns the pages to the system.
//
// Device and ledger outlive it. Returns kFault with region and bytes if memory runs out, and errors
// of the device.
#pragma once

#include <array>

#include "kernels/core/device.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

inline constexpr size_t kMicroSlots = 2;

// Offsets in bytes into the device's block and the pinned block.
struct DeviceIoPlan {
  size_t state = 0;  // ofsdp_run_state
  std::array<size_t, kMicroSlots> numbers{};
  std::array<size_t, kMicroSlots> inputs{};
  size_t partials = 0;  // partial sums of the norm, or of norms of parameters
  size_t squares = 0;   // per parameter
  size_t means = 0;     // of row factors, per matrix
  std::array<size_t, kMicroSlots> scalars{}, pinned_scalars{};  // of DeviceRules
  size_t rules = 0;                                             // scratch of DeviceRules
  size_t slices = 0;                                            // SliceRoom
  size_t exact_sum = 0, exact_limbs = 0;                        // the norm under across_ranks
  size_t device_bytes = 0;

  std::array<size_t, kMicroSlots> pinned_numbers{};
  std::array<size_t, kMicroSlots> pinned_results{};
  size_t mark = 0;    // number of the latest collective (runtime/engine/device/device_ranks.h)
  size_t bounce = 0;  // buffer for copies of whole regions
  size_t pinned_bytes = 0;
};

// Returns the number of a dtype in the device table.
inline int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

inline constexpr size_t kBounceBytes = size_t{4} << 20;

// Sizes for an optimizer that needs norms or factors; all 0 for others.
struct DeviceNormsPlan {
  int64_t parameters = 0;  // two squares each
  int64_t most_parts = 0;  // of a unit
  int64_t matrices = 0;    // with factored second moments
};
DeviceNormsPlan plan_device_norms(const Plan& plan);

// `inputs`: bytes of the columns of the largest micro-batch, each column aligned. `most_owned`:
// elements of the largest shard.
DeviceIoPlan plan_device_io(size_t inputs, int64_t batch_size, int64_t most_owned,
                            const DeviceNormsPlan& norms);

class DeviceRankMemory {
 public:
  // `several`: there are several ranks; they read each other's arena and shared region.
  static Result<DeviceRankMemory> allocate(Device& device, MemoryLedger& ledger,
                                           const RankMemoryPlan& plan, const DeviceIoPlan& io,
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

// Room to sum gradients in the order of slices ([Note: the same bits on any number of ranks] in
// fsdp/plan/plan.h). After each micro-batch the ranks exchange parts of their slots; each rank then
// has all gradients of its shard and adds them one after the other. The norm is an exact sum of
// squares (runtime/engine/exact_squares.h). A view of DeviceIoPlan's block; one unit at a time uses
// it, on the communication stream.
struct SliceRoom {
  std::byte* parts = nullptr;  // of all ranks, in order; unused if there is one rank
  float* sum = nullptr;        // used if the unit keeps no gradient
  float* rounded = nullptr;
};

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices);
// Adds room for the largest unit and for the norm.
void add_slices(DeviceIoPlan& io, const Plan& plan);

}  // namespace ofsdp::runtime
