// Fibers on AArch64: x19 to x30 and the low halves of v8 to v15 belong to the caller.
#include <algorithm>

#include "cuda_runtime.h"
#include "machine.h"

asm(R"(
.text
.globl emulator_switch
.type emulator_switch, %function
emulator_switch:
  hint #34
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulator_switch, .-emulator_switch
)");

namespace emulator {

void* emulator_first_place(char* top, void (*enter)()) {
  constexpr int kSaved = 20, kReturn = 11;
  void** at = reinterpret_cast<void**>(top) - kSaved;
  std::fill_n(at, kSaved, nullptr);
  at[kReturn] = reinterpret_cast<void*>(enter);
  return at;
}

}  // namespace emulator
