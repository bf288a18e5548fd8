// Finds data races in kernels that run on tests/emulator, from the calls that g++ -fsanitize=thread
// makes for each access. The sanitizer's run time is not linked; hooks.cpp takes its place.
//
// Two accesses to a byte, one a write and not both atomic, are a race unless
//   - one thread made both, or they belong to two launches, or
//   - the threads are in one block and __syncthreads lies between, or
//   - they are in one warp and __syncwarp for both lanes lies between. Shuffles order nothing.
// Blocks are never ordered. So one run finds every race among its accesses, whatever the order in
// which it was executed. It also finds shared bytes that are read before the block wrote them,
// accesses beyond a shared array or a buffer, and bytes that are touched before a cp.async into
// them by any thread has been awaited.
//
// Watched are shared memory and buffers in `device_memory` (device_memory.h); stacks and arguments
// are not. A finding is kept once for each kernel and pair of places in the source.
//
// Ownership: one Detector at a time; it is the emulator's observer while it lives. Threads: one.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/emulator/emulator.h"
#include "tests/emulator/shared_memory.h"

namespace ofsdp::races {

enum class Access : uint8_t { kRead, kWrite, kAtomicRead, kAtomic };
enum class Fault : uint8_t {
  kBetweenWarps,
  kInsideWarp,
  kBetweenBlocks,
  kNotWritten,
  kBeyond,
  kCopying
};

// An access in 64 bits: stretch, thread, count of __syncwarps in the stretch, atomic or not. A
// stretch lies between two barriers of a block, and counts from 1 over all blocks and launches.
struct Stamp {
  uint64_t bits = 0;

  static Stamp of(uint32_t stretch, unsigned thread, uint32_t syncs, bool atomic) {
    return {uint64_t{stretch} << 32 | (syncs & 0xfffff) << 11 | thread << 1 | (atomic ? 1u : 0u)};
  }
  uint32_t stretch() const { return static_cast<uint32_t>(bits >> 32); }
  unsigned thread() const { return bits >> 1 & 0x3ff; }
  uint32_t syncs() const { return bits >> 11 & 0xfffff; }
  bool atomic() const { return (bits & 1) != 0; }
};
inline constexpr uint32_t kWallStretch = ~0u;  // for bytes that nobody may touch

// The history of a few neighbouring bytes: the last write, the last read and one more read, by
// another thread, that a later write may race with.
struct Cell {
  Stamp write, read, other;
  uint32_t write_at = 0, read_at = 0, other_at = 0;  // code addresses
  uint32_t copying = 0;                              // the stretch that issued a copy to it
};

// Watched memory; each granule has a cell at its first byte.
class Region {
 public:
  Region(const void* begin, size_t bytes);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { munmap(cells_, reserved_); }

  bool holds(const void* at) const { return offset(at) < bytes_; }
  // Calls f(cell) for the cells of these bytes.
  template <typename F>
  void visit(const void* at, size_t bytes, const F& f) {
    const size_t first = offset(at), end = first + bytes;
    for (size_t page = first / kPage; page <= (end - 1) / kPage; ++page) {
      const size_t from = std::max(first, page * kPage), to = std::min(end, (page + 1) * kPage);
      while (((from | to) & (granule(page) - 1)) != 0) split(page);
      for (size_t i = from; i < to; i += granule(page)) f(cells_[i]);
    }
  }
  void forget();  // cells have four bytes again; for a region after all its launches

 private:
  static constexpr size_t kPage = 256;
  size_t offset(const void* at) const {
    return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(begin_);
  }
  size_t granule(size_t page) const { return size_t{4} >> splits_[page]; }
  void split(size_t page);

  const void* begin_;
  size_t bytes_, reserved_;
  Cell* cells_;
  std::vector<uint8_t> splits_;  // for each page: cells have 4, 2 or 1 bytes
};

struct Finding {
  Fault fault;
  const void* kernel;
  Access access, earlier;
  uint32_t at, earlier_at;  // code addresses
  unsigned thread, earlier_thread;
  bool shared;  // memory
  uint3 block;
};

class Detector final : public emulator::Observer {
 public:
  explicit Detector(Region* device);
  ~Detector() override;
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  // `code`: the return address of the hook's call.
  void access(const void* at, size_t bytes, Access kind, const void* code);
  std::vector<Finding> take_findings();
  const std::set<const void*>& kernels() const { return kernels_; }  // all launched ones

  void launch_begins(const emulator::LaunchShape& shape) override;
  void block_begins() override;
  void barrier() override;
  void warp_met(unsigned first, uint32_t mask) override;
  void copy_issued(const void* to, const void* from, size_t bytes, const void* code) override;
  void copy_awaited(const void* to, const void* code) override;
  void atomic(const void* at, size_t bytes, const void* code) override {
    access(at, bytes, Access::kAtomic, code);
  }

 private:
  struct Now {
    Stamp stamp;
    Access kind;
    uint32_t code;
    bool shared;
  };
  void touch(Cell& cell, const Now& now);
  void check(const Now& now, Stamp earlier, Access kind, uint32_t code);
  void remember_read(Cell& cell, const Now& now) const;
  bool ordered(Stamp earlier, Stamp now) const;
  void report(Fault fault, const Now& now, Stamp earlier, Access kind, uint32_t code);
  void forget_syncs();
  Region* region_of(const void* at);
  void know(const unsigned char* begin, const unsigned char* end);
  void wall(const unsigned char* begin, const unsigned char* end);

  std::vector<emulator::SharedPart> parts_;  // the program's shared memory, by address
  std::pair<unsigned char*, unsigned char*> span_;
  Region shared_;
  std::vector<bool> known_shared_;  // words in the span that are shared memory or walls
  Region* device_;
  uint32_t stretch_ = 0, block_ = 0, launch_ = 0;  // now; the first ones in block and launch
  const void* kernel_ = nullptr;
  bool synced_ = false;                      // whether this stretch had a __syncwarp
  std::vector<uint32_t> syncs_;              // for each thread
  std::vector<std::vector<uint32_t>> seen_;  // for each thread: lanes' syncs that it has met
  std::set<std::tuple<Fault, const void*, uint32_t, uint32_t>> known_;
  std::vector<Finding> findings_;
  std::set<const void*> kernels_;
};

}  // namespace ofsdp::races
