// The state of the machine in emulator.h, for the emulator's sources: the threads of the running
// block, and which can go on. Static. Threads: one launches.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "emulator.h"

namespace emulator {

enum class State : uint8_t { kReady, kBarrier, kMeeting, kDone };

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  void* place = nullptr;  // the stack pointer while it waits
  std::unique_ptr<char[]> stack;
  uint3 thread{};
  State state = State::kReady;
  bool exchanges = false;  // meets others for their values, not for __syncwarp
  uint32_t mask = 0;       // of the lanes it meets
  Place at;                // the call in which it waits
  std::vector<Copy> copies;
  std::unique_ptr<Slot[]> met;  // for a mask that is not the whole warp
};

struct Warp {
  Slot slots[2][kWarp], some[kWarp];           // meetings: all lanes, in turn; some lanes
  uint32_t rounds = 0;                         // meetings of all lanes
  uint32_t alive = 0, ready = 0, arrived = 0;  // lanes
};

// xorshift64*
struct Draws {
  uint64_t state = 1;
  uint32_t operator()() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return static_cast<uint32_t>(state * 0x2545F4914F6CDD1D >> 32);
  }
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  uint32_t runnable = 0;  // warps with a ready lane
  size_t threads = 0, waiting = 0, done = 0;
  size_t current = 0;
  void* scheduler = nullptr;
  const std::function<void()>* body = nullptr;
  Draws draw;
  bool stays = false;  // with a warp while it can go on
  bool failed = false;
};

struct Machine {
  Block block;
  uint64_t seed = 1;
  bool backwards = false;
  std::vector<std::string>* errors = nullptr;

  Machine() {
    if (const char* given = std::getenv("OFSDP_EMULATOR_SEED")) {
      seed = std::strtoull(given, nullptr, 10);
    }
  }
};

inline Machine& machine() {
  static Machine m;
  return m;
}

// Prints the last line of a run, or adds it to the collected errors: then the block has
// failed.
void say(const std::string& what, const Place& place);
std::string name_of(const Place& place);
std::string lanes_of(uint32_t mask);  // "16, 17"

// Saves the registers on this stack, and goes on from the saved place of the other stack.
extern "C" void emulator_switch(void** from, void* to);

// Writes below `top` the registers that emulator_switch restores, as if `enter` had just been
// called, with nothing to return to. Returns the place to switch to.
void* emulator_first_place(char* top, void (*enter)());

void begin_threads(Block& b, const dim3& size);
void run_threads(Block& b, bool backwards);  // until all end or the block fails

}  // namespace emulator
