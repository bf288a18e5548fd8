#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "cuda_runtime.h"
#include "machine.h"
#include "shared_memory.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

int running_thread = -1;
Observer* observer = nullptr;

namespace {

constexpr size_t kMaxThreads = 1024;

void begin_block(Block& b, const dim3& size) {
  b.stays = b.draw() % 4 != 0;
  // 0xff is a NaN in every format; else any number.
  begin_shared_block(static_cast<unsigned char>(b.draw() % 2 == 0 ? 0xff : b.draw()));
  begin_threads(b, size);
  if (observer != nullptr) observer->block_begins();
}

void make(const Copy& copy) {
  std::memset(copy.to, 0, 16);
  std::memcpy(copy.to, copy.from, copy.bytes);
}

uint64_t mixed(uint64_t seed, const dim3& d) {
  seed = seed * 0x9E3779B97F4A7C15 + (uint64_t{d.x} << 40 ^ uint64_t{d.y} << 20 ^ d.z);
  return seed ^ seed >> 29;
}

// Visits 0 .. n - 1 in the order first, first + step, ...
struct DrawnOrder {
  uint64_t n, first, step;
  DrawnOrder(uint64_t count, Draws& draw) : n(count), first(draw() % n), step(draw() % n) {
    while (std::gcd(step, n) != 1) step = (step + 1) % n;
  }
  uint64_t operator[](uint64_t k) const { return (first + k * step) % n; }
};

}  // namespace

std::string name_of(const Place& place) {
  return std::string(place.file_name()) + ":" + std::to_string(place.line());
}

void say(const std::string& what, const Place& place) {
  const Machine& m = machine();
  const std::string line = "emulator: " + what + " at " + name_of(place) + " in " +
                           place.function_name() + ", block (" + std::to_string(blockIdx.x) + ", " +
                           std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) +
                           "), seed " + std::to_string(m.seed) + (m.backwards ? " backwards" : "");
  if (m.errors == nullptr) {
    std::fprintf(stderr, "%s\n", line.c_str());
    std::abort();
  }
  m.errors->push_back(line);
  machine().block.failed = true;
}

std::string lanes_of(uint32_t mask) {
  std::string names;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) != 0) names += (names.empty() ? "" : ", ") + std::to_string(lane);
  }
  return names;
}

void set_seed(uint64_t seed) { machine().seed = seed; }
void set_backwards(bool backwards) { machine().backwards = backwards; }
void collect_errors(std::vector<std::string>* errors) { machine().errors = errors; }

void fail(const std::string& what, const Place& place) {
  Block& b = machine().block;
  say(what, place);
  if (running_thread >= 0) emulator_switch(&b.fibers[b.current].place, b.scheduler);
  std::abort();  // nobody returns to a thread in a failed block
}

void copy_later(void* to, const void* from, size_t bytes) {
  Machine& m = machine();
  const Copy copy{to, from, bytes};
  m.block.fibers[m.block.current].copies.push_back(copy);
  if (observer != nullptr) observer->copy_issued(to, from, bytes, __builtin_return_address(0));
  if (m.backwards) make(copy);
}

void finish_copies() {
  Machine& m = machine();
  std::vector<Copy>& copies = m.block.fibers[m.block.current].copies;
  for (const Copy& copy : copies) {
    if (!m.backwards) make(copy);
    if (observer != nullptr) observer->copy_awaited(copy.to, __builtin_return_address(0));
  }
  copies.clear();
}

long& launches() {
  static long count = 0;
  return count;
}

void run(const LaunchShape& shape, const std::function<void()>& thread) {
  ++launches();
  Machine& m = machine();
  Block& b = m.block;
  const dim3 size = shape.block, grid = shape.grid;
  b.threads = size_t{size.x} * size.y * size.z;
  if (b.threads == 0 || b.threads > kMaxThreads) {
    return say("a block of " + std::to_string(b.threads) + " threads", Place::current());
  }
  if (b.fibers.size() < b.threads) b.fibers.resize(b.threads);
  b.warps.resize((b.threads + kWarp - 1) / kWarp);
  b.body = &thread;
  b.failed = false;
  b.draw.state = mixed(mixed(m.seed, grid), size) | 1;
  blockDim = size;
  gridDim = grid;
  if (observer != nullptr) observer->launch_begins(shape);
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (blocks == 0) return;
  const DrawnOrder order(blocks, b.draw);
  for (uint64_t k = 0; k < blocks && !b.failed; ++k) {
    const uint64_t at = order[m.backwards ? blocks - 1 - k : k];
    blockIdx = {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                static_cast<unsigned>(at / grid.x / grid.y)};
    begin_block(b, size);
    run_threads(b, m.backwards);
    const Place* broken = b.failed ? nullptr : broken_wall();
    if (broken != nullptr) say("shared memory was written beyond what is declared", *broken);
  }
}

}  // namespace emulator
