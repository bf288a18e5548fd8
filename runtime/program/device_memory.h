// DeviceRankMemory: what a rank holds on a device, the regions of RankMemoryPlan that kernels see,
// and a block for what goes in and out; and, pinned on the host, the staging of the loader and the
// other end of that block. All of it is allocated once, from the plan.
//
// Inputs, numbers and results have two slots: while the device works on one micro-batch the next is
// uploaded. The host keeps an image of kept, state and shared for loading and saving; its pages are
// given back to the system in between.
//
// Ownership: DeviceRankMemory owns it; device and ledger outlive it. Threads: one. Errors: kFault
// naming region and bytes when there is no memory left; what the device says.
#pragma once

#include <array>

#include "kernels/core/device.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

inline constexpr size_t kMicroSlots = 2;

// Offsets in bytes, in the device's block and in the pinned one.
struct DeviceIoPlan {
  size_t state = 0;  // ofsdp_run_state
  std::array<size_t, kMicroSlots> numbers{};
  std::array<size_t, kMicroSlots> inputs{};
  size_t partials = 0;  // of the norm, or of norms of parameters
  size_t squares = 0;   // of parameters
  size_t means = 0;     // of the row factors of matrices
  std::array<size_t, kMicroSlots> scalars{}, pinned_scalars{};  // of DeviceRules, as is
  size_t rules = 0;                                             // its scratch
  size_t slices = 0;  // of sums in the order of slices (runtime/program/device_slices.h)
  size_t exact_sum = 0, exact_limbs = 0;  // of the norm of such sums
  size_t device_bytes = 0;

  std::array<size_t, kMicroSlots> pinned_numbers{};
  std::array<size_t, kMicroSlots> pinned_results{};
  size_t mark = 0;    // how far the collectives are (runtime/engine/device/device_ranks.h)
  size_t bounce = 0;  // where images of regions pass through
  size_t pinned_bytes = 0;
};

// A type as the device table has it.
inline int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

inline constexpr size_t kBounceBytes = size_t{4} << 20;

// The sizes for the run's optimizer; no numbers where it needs no norms.
struct DeviceNormsPlan {
  int64_t parameters = 0;  // two squares each
  int64_t most_parts = 0;  // of a unit
  int64_t matrices = 0;    // whose second moments are factored
};
DeviceNormsPlan plan_device_norms(const Plan& plan);

// `inputs`: bytes of the columns of the largest micro-batch, each aligned; `most_owned`: elements.
DeviceIoPlan plan_device_io(size_t inputs, int64_t batch_size, int64_t most_owned,
                            const DeviceNormsPlan& norms);

class DeviceRankMemory {
 public:
  // `several`: ranks, which reach into the arena and what is shared.
  static Result<DeviceRankMemory> allocate(Device& device, MemoryLedger& ledger,
                                           const RankMemoryPlan& plan, const DeviceIoPlan& io,
                                           bool several);

  MemoryBases bases() const { return {arena_.data(), kept_.data(), state_.data(), shared_.data()}; }
  std::span<std::byte> staging() const { return {staging_.data(), staging_.bytes()}; }
  std::byte* io() const { return io_.data(); }
  std::byte* pinned() const { return pinned_.data(); }

  // Kept, state and shared, to and from their images. They wait for the device.
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
