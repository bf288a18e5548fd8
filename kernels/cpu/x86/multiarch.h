// OFSDP_MULTIARCH and a loop's versions (kernels/cpu/parallel.h): AVX-512, AVX2 and baseline
// x86-64. Sanitizers cannot run in the resolvers that clones need; with them there is the baseline
// alone.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OFSDP_MULTIARCH
#else
#define OFSDP_MULTIARCH \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), no_stack_protector))
#endif

namespace ofsdp::kernels {

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
