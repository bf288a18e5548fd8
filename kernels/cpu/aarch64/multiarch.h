// OFSDP_MULTIARCH and a loop's versions (kernels/cpu/parallel.h): one, since the baseline has NEON
// with fused operations and GCC's vectoriser uses it.
#pragma once

#define OFSDP_MULTIARCH __attribute__((no_stack_protector))

namespace ofsdp::kernels {

template <auto separate, auto fused>
struct LoopVersions;

template <typename R, typename... Args, R (*separate)(Args...), R (*fused)(Args...)>
struct LoopVersions<separate, fused> {
  __attribute__((no_stack_protector)) static R only(Args... args) { return fused(args...); }
  static auto fastest() { return only; }
};

}  // namespace ofsdp::kernels
