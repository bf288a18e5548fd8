// kernels/cpu/multiarch.h for aarch64; CMake copies this file or x86's to that path. Both define
// the same two names, through which a hot loop runs on the best vector instructions of this
// processor. On aarch64 there is nothing to choose: every processor has NEON with fused
// multiply-add, which GCC's vectorizer uses, so each loop is compiled once.
#pragma once

// Marks a function with a hot loop. Here it only removes the stack canary
// ([Note: hardening] in cmake/targets.cmake).
#define OFSDP_MULTIARCH __attribute__((no_stack_protector))

namespace ofsdp::kernels {

// Chooses between two versions of one loop. `separate` multiplies and then adds, rounding twice;
// `fused` uses a fused multiply-add, which rounds once, so results differ in the last bit.
// fastest() returns a pointer to the version for this processor: here always `fused`. Callers use
// fastest_version in kernels/cpu/parallel.h.
template <auto separate, auto fused>
struct LoopVersions;

template <typename R, typename... Args, R (*separate)(Args...), R (*fused)(Args...)>
struct LoopVersions<separate, fused> {
  // Inlines `fused` into a function without a stack canary.
  __attribute__((no_stack_protector)) static R only(Args... args) { return fused(args...); }
  static auto fastest() { return only; }
};

}  // namespace ofsdp::kernels
