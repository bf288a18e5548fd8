// kernels/cpu/multiarch.h for x86-64; CMake copies this file or aarch64's to that path. Both define
// the same two names, through which a hot loop runs on the best vector instructions of this
// processor: AVX-512 (x86-64-v4), AVX2 (x86-64-v3) or the baseline, SSE2.
//
// Builds with a sanitizer have only the baseline: GCC's clones need a resolver that runs while the
// program is loaded, before the sanitizer works.
#pragma once

// Marks a function with a hot loop: GCC compiles it once per instruction set, and the loader
// chooses. Also removes the stack canary ([Note: hardening] in cmake/targets.cmake).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OFSDP_MULTIARCH
#else
#define OFSDP_MULTIARCH \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), no_stack_protector))
#endif

namespace ofsdp::kernels {

// Chooses between two versions of one loop. `separate` multiplies and then adds, rounding twice;
// `fused` uses a fused multiply-add, which rounds once, so results differ in the last bit.
// fastest() returns a pointer to the version for this processor: `fused` with AVX-512 or AVX2, else
// `separate`, since the baseline has no fused instructions. Callers use fastest_version in
// kernels/cpu/parallel.h.
template <auto separate, auto fused>
struct LoopVersions;

template <typename R, typename... Args, R (*separate)(Args...), R (*fused)(Args...)>
struct LoopVersions<separate, fused> {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static auto fastest() { return separate; }
#else
  __attribute__((target("arch=x86-64-v4"), no_stack_protector)) static R avx512(Args... args) {
    return fused(args...);
  }
  __attribute__((target("arch=x86-64-v3"), no_stack_protector)) static R avx2(Args... args) {
    return fused(args...);
  }
  __attribute__((no_stack_protector)) static R baseline(Args... args) { return separate(args...); }

  static auto fastest() {
    if (__builtin_cpu_supports("x86-64-v4")) return avx512;
    return __builtin_cpu_supports("x86-64-v3") ? avx2 : baseline;
  }
#endif
};

}  // namespace ofsdp::kernels
