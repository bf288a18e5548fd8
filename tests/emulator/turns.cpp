// The turns of threads: a block's threads as fibers, their order, barriers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda_runtime.h"
#include "machine.h"

namespace emulator {
namespace {

constexpr size_t kStack = 128 << 10;

// Ends a lane; a lane that waits for it is an error.
void end_lane(Block& b, Warp& w, size_t i) {
  const uint32_t own = 1u << i % kWarp;
  w.alive &= ~own;
  ++b.done;
  for (unsigned lane = 0; w.arrived != 0 && lane < kWarp; ++lane) {
    const Fiber& f = b.fibers[i / kWarp * kWarp + lane];
    if ((w.arrived >> lane & 1) != 0 && (f.mask & own) != 0) {
      return say("lane " + std::to_string(i % kWarp) + " has ended, which lane " +
                     std::to_string(lane) + " names in its mask",
                 f.at);
    }
  }
}

void enter() {
  Block& b = machine().block;
  (*b.body)();
  Fiber& f = b.fibers[b.current];
  f.state = State::kDone;
  end_lane(b, b.warps[b.current / kWarp], b.current);
  emulator_switch(&f.place, b.scheduler);
}

void start(Block& b, size_t i, const dim3& size) {
  Fiber& f = b.fibers[i];
  if (!f.stack) f.stack = std::make_unique<char[]>(kStack);
  const auto t = static_cast<unsigned>(i);
  f.thread = {t % size.x, t / size.x % size.y, t / size.x / size.y};
  f.state = State::kReady;
  f.copies.clear();
  f.place = emulator_first_place(f.stack.get() + kStack, enter);
}

void start_warp(Block& b, size_t i) {
  Warp& w = b.warps[i];
  const size_t lanes = std::min<size_t>(b.threads - i * kWarp, kWarp);
  w.alive = w.ready = kAllLanes >> (kWarp - lanes);
  w.arrived = 0;
  b.runnable |= 1u << i;
}

void resume(Block& b, size_t i) {
  Fiber& f = b.fibers[i];
  b.current = i;
  running_thread = static_cast<int>(i);
  threadIdx = f.thread;
  emulator_switch(&b.scheduler, f.place);
  running_thread = -1;
}

// Runs the warp's ready lanes, each once, in a drawn order.
void run_lanes(Block& b, size_t warp, bool backwards) {
  Warp& w = b.warps[warp];
  const uint32_t todo = std::exchange(w.ready, 0);
  b.runnable &= ~(1u << warp);
  const uint32_t first = b.draw(), step = b.draw() | 1;
  for (unsigned k = 0; k < kWarp && !b.failed; ++k) {
    const uint32_t lane = ((backwards ? kWarp - 1 - k : k) * step + first) % kWarp;
    if ((todo >> lane & 1) != 0) resume(b, warp * kWarp + lane);
  }
}

// A warp that can go on: the first from a drawn one on or, backwards, the last.
size_t next_warp(const Block& b, uint32_t first, bool backwards) {
  first %= kWarp;
  const uint32_t turned = b.runnable >> first | b.runnable << (kWarp - first) % kWarp;
  const auto k =
      static_cast<uint32_t>(backwards ? 31 - __builtin_clz(turned) : __builtin_ctz(turned));
  return (first + k) % kWarp;
}

// Runs warps until each thread has ended or waits.
void run_warps(Block& b, bool backwards) {
  uint32_t first = b.draw();
  while (b.runnable != 0 && !b.failed) {
    if (!b.stays) first = b.draw();
    const size_t warp = next_warp(b, first, backwards);
    do {
      run_lanes(b, warp, backwards);
    } while (b.stays && (b.runnable >> warp & 1) != 0 && !b.failed);
  }
}

// Prints which threads keep each other from going on.
void explain_standstill(Block& b) {
  for (size_t i = 0; i < b.threads; ++i) {
    const Fiber& f = b.fibers[i];
    if (f.state != State::kMeeting) continue;
    const Warp& w = b.warps[i / kWarp];
    const uint32_t absent = f.mask & ~w.arrived;  // 0: all wait, but for different lanes
    const uint32_t others = absent != 0 ? absent : f.mask & ~(1u << i % kWarp);
    const size_t first = i / kWarp * kWarp + static_cast<size_t>(__builtin_ctz(others));
    return say("lane " + std::to_string(i % kWarp) + " waits for lanes " + lanes_of(others) +
                   " of its mask; the first waits at " + name_of(b.fibers[first].at),
               f.at);
  }
  const auto end = b.fibers.begin() + static_cast<std::ptrdiff_t>(b.threads);
  const auto waits = std::find_if(b.fibers.begin(), end,
                                  [](const Fiber& f) { return f.state == State::kBarrier; });
  say(std::to_string(b.done) + " threads left before a barrier of the others", waits->at);
}

bool same(const Place& a, const Place& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

// All threads have reached a barrier.
void pass_barrier(Block& b) {
  const Place& at = b.fibers[0].at;
  for (size_t i = 0; i < b.threads; ++i) {
    Fiber& f = b.fibers[i];
    if (!same(at, f.at)) {
      return say("thread " + std::to_string(i) + " waits at another barrier, " + name_of(f.at) +
                     ", than thread 0",
                 at);
    }
    f.state = State::kReady;
  }
  b.waiting = 0;
  for (size_t k = 0; k < b.warps.size(); ++k) {
    b.warps[k].ready = b.warps[k].alive;
    b.runnable |= 1u << k;
  }
  if (observer != nullptr) observer->barrier();
}

}  // namespace

void begin_threads(Block& b, const dim3& size) {
  b.waiting = b.done = 0;
  b.runnable = 0;
  for (size_t i = 0; i < b.threads; ++i) start(b, i, size);
  for (size_t i = 0; i < b.warps.size(); ++i) start_warp(b, i);
}

void run_threads(Block& b, bool backwards) {
  for (;;) {
    run_warps(b, backwards);
    if (b.failed || b.done == b.threads) return;
    if (b.waiting == b.threads) {
      pass_barrier(b);
    } else {
      return explain_standstill(b);
    }
  }
}

}  // namespace emulator
