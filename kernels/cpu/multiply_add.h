// a * b + c in the two ways that processors have, as a type that a loop is compiled for.
//
//   SeparateMultiplyAdd   rounds the product and the sum; every processor has it
//   FusedMultiplyAdd      rounds once, in one instruction instead of two; processors with AVX2 and
//                         aarch64 have it, on others it is a call of the C library
//
// The type says which, not -ffp-contract: a compiler may contract the vector loop and not the
// elements that are left over, and the bits of an element would depend on its place ([Note: the
// same bits everywhere] in cmake/targets.cmake). fastest_version (parallel.h) takes the one that
// the processor has.
//
// Threads: any. Call FusedMultiplyAdd from a loop of fastest_version. Errors: none.
#pragma once

namespace ofsdp::kernels {

struct SeparateMultiplyAdd {
  template <typename T>
  [[gnu::always_inline]] static inline T of(T a, T b, T c) {
    return a * b + c;
  }
};

struct FusedMultiplyAdd {
  [[gnu::always_inline]] static inline float of(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
  }
  [[gnu::always_inline]] static inline double of(double a, double b, double c) {
    return __builtin_fma(a, b, c);
  }
};

}  // namespace ofsdp::kernels
