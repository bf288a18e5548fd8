// [Note: shared memory of the emulator] `__shared__` becomes `static`, with a wall of known bytes
// and an owner in front of each declaration. The program's symbol table lists the static variables
// of a function (their names begin like the owner's name). The owner of the first declaration that
// a thread passes fills all these variables with garbage. When the block ends, the walls must be
// whole. A section for these variables would be plainer. But GCC 12 drops that attribute in
// templates, and AddressSanitizer does not look at such variables.
//
// Ownership: static. Threads: one launches. Errors: as in emulator.h; a program without a symbol
// table ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

namespace emulator {

struct alignas(64) Wall {
  unsigned char bytes[64];
};

extern uint64_t running_block;  // a new number for each block
struct SharedGroup;             // one function's shared variables

class SharedOwner {
 public:
  constexpr SharedOwner(const Wall* wall, std::source_location place)
      : wall_(wall), place_(place) {}
  void declared() {
    if (block_ != running_block) fill();
  }

 private:
  void fill();

  const Wall* wall_;  // so that the wall is kept
  std::source_location place_;
  uint64_t block_ = 0;  // the last one that came here
  SharedGroup* group_ = nullptr;
};

// For emulator.cpp, about the running block.
void begin_shared_block(unsigned char garbage);
const std::source_location* broken_wall();  // the declaration next to it, or null; mends it

struct SharedPart {
  unsigned char* begin;
  size_t bytes;
  bool wall;
};
void for_each_shared(const std::function<void(const SharedPart&)>& f);  // in this program

}  // namespace emulator

#define OFSDP_EMULATOR_JOIN_(a, b) a##b
#define OFSDP_EMULATOR_JOIN(a, b) OFSDP_EMULATOR_JOIN_(a, b)
#define OFSDP_EMULATOR_SHARED(wall, owner)                                    \
  static emulator::Wall wall;                                                 \
  static emulator::SharedOwner owner(&wall, std::source_location::current()); \
  owner.declared();                                                           \
  static
#define __shared__                                                        \
  OFSDP_EMULATOR_SHARED(OFSDP_EMULATOR_JOIN(emulator_wall_, __COUNTER__), \
                        OFSDP_EMULATOR_JOIN(emulator_owner_, __COUNTER__))
