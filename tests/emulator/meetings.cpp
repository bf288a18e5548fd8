// Lets threads wait for each other: barriers, shuffles, __syncwarp.
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace emulator {
namespace {

Fiber& fiber_of(Block& b, unsigned lane) { return b.fibers[b.current / kWarp * kWarp + lane]; }

// The running thread is the mask's last lane to come.
void pass_meeting(Block& b, Warp& w, uint32_t mask, const Place& place) {
  const Fiber& last = b.fibers[b.current];
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    Fiber& f = fiber_of(b, lane);
    if (f.mask != mask || f.exchanges != last.exchanges) {
      fail("the mask names lane " + std::to_string(lane) + ", which waits at " + name_of(f.at) +
               " with another mask or for something else",
           place);
    }
    f.state = State::kReady;
    if (mask == kAllLanes) continue;
    if (!f.met) f.met = std::make_unique<Slot[]>(kWarp);
    std::copy_n(w.some, kWarp, f.met.get());
  }
  w.arrived &= ~mask;
  w.ready |= mask;
  b.runnable |= 1u << b.current / kWarp;
  if (mask == kAllLanes) ++w.rounds;
  if (!last.exchanges && observer != nullptr) {
    observer->warp_met(static_cast<unsigned>(b.current / kWarp * kWarp), mask);
  }
}

const Slot* meet(const void* mine, size_t bytes, uint32_t mask, bool exchanges,
                 const Place& place) {
  Block& b = machine().block;
  Warp& w = b.warps[b.current / kWarp];
  Fiber& f = b.fibers[b.current];
  const uint32_t own = 1u << b.current % kWarp;
  if ((mask & own) == 0) fail("a lane is not in its own mask", place);
  if ((mask & ~w.alive) != 0) {
    fail("the mask names lanes that have ended: " + lanes_of(mask & ~w.alive), place);
  }
  Slot* slots = mask == kAllLanes ? w.slots[w.rounds & 1] : w.some;
  if (bytes > 0) std::memcpy(slots[b.current % kWarp].bytes, mine, bytes);
  f.mask = mask;
  f.exchanges = exchanges;
  f.at = place;
  f.state = State::kMeeting;
  w.arrived |= own;
  if ((w.arrived & mask) == mask) pass_meeting(b, w, mask, place);
  emulator_switch(&f.place, b.scheduler);
  return mask == kAllLanes ? slots : f.met.get();
}

}  // namespace

int lane() { return static_cast<int>(machine().block.current % kWarp); }

void sync_threads(const Place& place) {
  Block& b = machine().block;
  ++b.waiting;
  Fiber& f = b.fibers[b.current];
  f.state = State::kBarrier;
  f.at = place;
  emulator_switch(&f.place, b.scheduler);
}

void sync_warp(uint32_t mask, const Place& place) { meet(nullptr, 0, mask, false, place); }

const Slot* meet(const void* mine, size_t bytes, uint32_t mask, const Place& place) {
  return meet(mine, bytes, mask, true, place);
}

}  // namespace emulator
