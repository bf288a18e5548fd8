// A group of ranks on the counting device: a piece of shared memory, named by the group's key. Each
// rank puts data there and takes the data of the other ranks. Sums are in the order of places, in
// float32 (fsdp/comm/communicator.h), so the bits equal the CPU communicator's.
//
// A collective is two operations on its stream. `begin` puts this rank's data, as soon as all ranks
// have ended the collective before last. `end`, ready when all ranks have begun, takes the data and
// computes. In between the stream waits, and the rest of the device goes on.
//
// Checked: all ranks in the group begin the same collective, captured or not, with the same size;
// registered memory lies in shared allocations and has the same size on every rank.
//
// Ownership: the file loses its name once all ranks have mapped it. Threads: under the device's
// lock; shared data is atomic. Errors: violations; a fault on the stream once the group is
// aborted.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/dtype.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {

const char* variable(const char* name);  // from the environment; "" when not set

inline constexpr int kMaxPlaces = 16;
inline constexpr size_t kMaxGiven = size_t{64} << 20;  // by a rank; sparse

struct SharedPlace {
  alignas(64) std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> ended{0};
  std::atomic<uint64_t> signature[2];  // of the last two collectives begun
  std::atomic<int32_t> color{0}, split_place{0};
  std::atomic<uint64_t> splits{0};
};

struct SharedGroup {
  std::atomic<int32_t> joined{0};
  SharedPlace places[kMaxPlaces];
};

struct Collective {
  enum class Kind { kGather, kScatter, kSum, kLargest, kParts };
  Kind kind = Kind::kGather;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  DType dtype = DType::kUndefined;
  int64_t count = 0;  // elements that each rank gets or gives; for a gather and for parts: bytes
  std::vector<size_t> offsets = {};  // of parts
  bool captured = false;

  uint64_t signature() const;
};

}  // namespace ofsdp::counting

struct ofsdp_group {
  std::byte* given(int place, uint64_t number) const;
  ofsdp::counting::SharedPlace& mine() const { return shared->places[place]; }
  bool may_begin() const;
  bool may_end() const;
  bool wanted() const;  // whether another rank waits for this one

  std::string name;
  ofsdp::counting::SharedGroup* shared = nullptr;
  int place = 0;
  int count = 1;
  bool aborted = false;
  bool left = false;
  uint64_t stuck_at = 0;  // COUNTING_DEVICE_STUCK; 0: never
  uint64_t fails_at = 0;  // COUNTING_DEVICE_FAILS
  uint64_t splits = 0;
  ofsdp_patience patience{};
};
