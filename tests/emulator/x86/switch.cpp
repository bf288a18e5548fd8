// Fibers for System V, x86-64. ucontext would ask the kernel for the signal mask at every turn.
#include <algorithm>

#include "cuda_runtime.h"
#include "machine.h"

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

namespace emulator {

void* emulator_first_place(char* top, void (*enter)()) {
  auto* at = reinterpret_cast<void**>(top) - 1;
  at[0] = nullptr;
  *--at = reinterpret_cast<void*>(enter);
  return std::fill_n(at - 6, 6, nullptr) - 6;
}

}  // namespace emulator
