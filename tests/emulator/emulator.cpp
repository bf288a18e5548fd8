#include <algorithm>
#include <memory>
#include <vector>

#include "cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

namespace {

constexpr size_t kStack = 128 << 10;
constexpr int kWarp = 32;

enum class State { kReady, kBarrier, kShuffle, kDone };

// Saves what a call keeps on this stack, goes on where the other one was left (System V, x86-64).
// ucontext would ask the kernel for the signal mask at every turn.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  void* place = nullptr;  // its stack pointer while it waits
  std::unique_ptr<char[]> stack;
  uint3 thread{};
  State state = State::kReady;
  int64_t shuffles = 0;
  std::vector<Copy> copies;
};

struct Warp {
  Slot slots[2][kWarp];
  int64_t complete = 0;  // shuffles that all lanes have come to
  int left = 0;          // lanes that have not ended
  int arrived = 0;       // of these, at the next shuffle

  void count() {
    if (left == 0 || arrived < left) return;
    ++complete;
    arrived = 0;
  }
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  void* scheduler = nullptr;
  const std::function<void()>* body = nullptr;
  size_t current = 0, threads = 0;
  bool backwards = false;
};

Block& block() {
  static Block b;
  return b;
}

void enter() {
  Block& b = block();
  (*b.body)();
  b.fibers[b.current].state = State::kDone;
  Warp& w = b.warps[b.current / kWarp];
  --w.left;
  w.count();
  emulator_switch(&b.fibers[b.current].place, b.scheduler);
}

void wait(State state) {
  Block& b = block();
  Fiber& f = b.fibers[b.current];
  f.state = state;
  emulator_switch(&f.place, b.scheduler);
}

bool resume(Block& b, size_t i) {
  Fiber& f = b.fibers[i];
  if (f.state == State::kDone || f.state == State::kBarrier) return false;
  if (f.state == State::kShuffle && f.shuffles > b.warps[i / kWarp].complete) return false;
  f.state = State::kReady;
  b.current = i;
  threadIdx = f.thread;
  emulator_switch(&b.scheduler, f.place);
  return true;
}

void start(Block& b, size_t i, const dim3& size) {
  Fiber& f = b.fibers[i];
  if (!f.stack) f.stack = std::make_unique<char[]>(kStack);
  const auto t = static_cast<unsigned>(i);
  f.thread = {t % size.x, t / size.x % size.y, t / size.x / size.y};
  f.state = State::kReady;
  f.shuffles = 0;
  f.copies.clear();
  // As if `enter` had been called with nothing to return to, and had been left at once.
  auto* top = reinterpret_cast<void**>(f.stack.get() + kStack) - 1;
  top[0] = nullptr;
  *--top = reinterpret_cast<void*>(&enter);
  f.place = std::fill_n(top - 6, 6, nullptr) - 6;
}

void start_warp(Block& b, size_t i) {
  Warp& w = b.warps[i];
  w.complete = 0;
  w.arrived = 0;
  w.left = static_cast<int>(std::min(b.threads - i * kWarp, size_t{kWarp}));
}

// Each warp as far as it gets alone, so that it is ahead of the others where nothing makes it wait
// for them.
bool run_warp(Block& b, size_t i) {
  const size_t first = i * kWarp, count = std::min(b.threads - first, size_t{kWarp});
  bool any = false;
  for (bool moved = true; moved; any |= moved) {
    moved = false;
    for (size_t k = 0; k < count; ++k) {
      moved |= resume(b, first + (b.backwards ? count - 1 - k : k));
    }
  }
  return any;
}

void run_block(Block& b) {
  for (;;) {
    bool moved = false;
    for (size_t k = 0; k < b.warps.size(); ++k) {
      moved |= run_warp(b, b.backwards ? b.warps.size() - 1 - k : k);
    }
    size_t done = 0, waiting = 0;
    for (size_t k = 0; k < b.threads; ++k) {
      done += b.fibers[k].state == State::kDone;
      waiting += b.fibers[k].state == State::kBarrier;
    }
    if (done == b.threads) return;
    if (waiting > 0 && done > 0 && done + waiting == b.threads) {
      std::fprintf(stderr, "emulator: %zu threads left before a barrier of the others\n", done);
      std::abort();
    }
    if (waiting == b.threads) {
      for (size_t k = 0; k < b.threads; ++k) b.fibers[k].state = State::kReady;
    } else if (!moved) {
      std::fprintf(stderr, "emulator: the threads of a block wait for each other\n");
      std::abort();
    }
  }
}

}  // namespace

void set_backwards(bool backwards) { block().backwards = backwards; }
int lane() { return static_cast<int>(block().current % kWarp); }
void sync_threads() { wait(State::kBarrier); }

const Slot* meet(const void* mine, size_t bytes) {
  Block& b = block();
  Warp& w = b.warps[b.current / kWarp];
  Fiber& f = b.fibers[b.current];
  Slot* slots = w.slots[f.shuffles & 1];
  std::memcpy(slots[b.current % kWarp].bytes, mine, bytes);
  ++f.shuffles;
  ++w.arrived;
  w.count();
  wait(State::kShuffle);
  return slots;
}

void copy_later(void* to, const void* from, size_t bytes) {
  Block& b = block();
  std::vector<Copy>& copies = b.fibers[b.current].copies;
  copies.push_back({to, from, bytes});
  if (b.backwards) finish_copies();
}

void finish_copies() {
  Block& b = block();
  std::vector<Copy>& copies = b.fibers[b.current].copies;
  for (const Copy& copy : copies) {
    std::memset(copy.to, 0, 16);
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  copies.clear();
}

long& launches() {
  static long count = 0;
  return count;
}

void run(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  ++launches();
  Block& b = block();
  const dim3 size = config.blockDim, grid = config.gridDim;
  b.threads = size_t{size.x} * size.y * size.z;
  if (b.fibers.size() < b.threads) b.fibers.resize(b.threads);
  b.warps.resize((b.threads + kWarp - 1) / kWarp);
  b.body = &thread;
  blockDim = size;
  gridDim = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        for (size_t i = 0; i < b.threads; ++i) start(b, i, size);
        for (size_t i = 0; i < b.warps.size(); ++i) start_warp(b, i);
        run_block(b);
      }
    }
  }
}

}  // namespace emulator
