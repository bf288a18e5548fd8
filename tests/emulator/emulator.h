// The machine under tests/emulator/cuda_runtime.h: runs the threads of a launch as fibers of one
// host thread, block after block.
//
// Order: a seed draws the turns of blocks, warps and lanes; the same seed and sizes draw the same.
// With set_backwards(true) every drawn order is reversed, so of two unordered threads each is first
// once. Memory: shared memory holds garbage when a block declares it. Errors: barriers at different
// places that meet, threads that left before a barrier, lanes in a mask that do not come, writes
// beyond a shared array. A line names the error and the place; then the process aborts or,
// with collect_errors, the launch ends.
//
// Ownership: the caller owns an observer and a list of errors. Threads: one launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace emulator {

using Place = std::source_location;
inline constexpr unsigned kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

void set_seed(uint64_t seed);  // before it 1, or OFSDP_EMULATOR_SEED
void set_backwards(bool backwards);
void collect_errors(std::vector<std::string>* errors);                // null: an error aborts
[[noreturn]] void fail(const std::string& what, const Place& place);  // for the running thread

// --- launches ---
struct LaunchShape {
  dim3 grid, block;
  const void* kernel = nullptr;  // the kernel's address
};
void run(const LaunchShape& shape, const std::function<void()>& thread);
long& launches();           // kernels, fills and copies given to streams so far
extern int running_thread;  // number in the block; -1 outside a launch

// --- meetings and copies of threads ---
void sync_threads(const Place& place);
void sync_warp(uint32_t mask, const Place& place);
// Every lane in the mask gives up to 48 bytes and gets the bytes of all these lanes. They must be
// read before the lane meets them again.
struct alignas(16) Slot {
  unsigned char bytes[48];
};
const Slot* meet(const void* mine, size_t bytes, uint32_t mask, const Place& place);
int lane();
// Copies 16 bytes (zeros if `bytes` is 0) as late as allowed, when the same thread finishes the
// copies; with threads that run backwards, at once.
void copy_later(void* to, const void* from, size_t bytes);
void finish_copies();

// --- events for an observer ---
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void launch_begins(const LaunchShape&) {}
  virtual void block_begins() {}
  virtual void barrier() {}                                        // all threads have come
  virtual void warp_met(unsigned /*first*/, uint32_t /*mask*/) {}  // in __syncwarp
  // `code`: the address that called the emulator.
  virtual void copy_issued(const void* /*to*/, const void* /*from*/, size_t /*bytes*/,
                           const void* /*code*/) {}
  virtual void copy_awaited(const void* /*to*/, const void* /*code*/) {}
  virtual void atomic(const void* /*at*/, size_t /*bytes*/, const void* /*code*/) {}
};
extern Observer* observer;  // null: nobody watches
inline void note_atomic(const void* at, size_t bytes, const void* code) {
  if (observer != nullptr) observer->atomic(at, bytes, code);
}

}  // namespace emulator
