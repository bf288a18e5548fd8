// The functions of <cmath> under one name for float and double, so that a formula is written once:
// float32 goes to the vector forms of kernels/cpu/vector_math.h, double to the C library.
//
//   FloatMathBy<A>::exp(x)   the type M of kernels/formulas; A is how products are added, of
//                            kernels/cpu/multiply_add.h
//   FloatMath                the same on every processor
//
// Threads: any. Call from an OFSDP_MULTIARCH function or a loop of fastest_version.
#pragma once

#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_pow.h"
#include "kernels/cpu/vector_trigonometry.h"

namespace ofsdp::kernels {

template <typename A>
struct FloatMathBy {
// A function of one argument that gcc turns into an instruction in both types.
#define OFSDP_INSTRUCTION(name)                                                               \
  [[gnu::always_inline]] static inline float name(float x) { return __builtin_##name##f(x); } \
  [[gnu::always_inline]] static inline double name(double x) { return __builtin_##name(x); }
  OFSDP_INSTRUCTION(sqrt)
  OFSDP_INSTRUCTION(fabs)
  OFSDP_INSTRUCTION(floor)
  OFSDP_INSTRUCTION(ceil)
  OFSDP_INSTRUCTION(trunc)
  OFSDP_INSTRUCTION(rint)
#undef OFSDP_INSTRUCTION

#define OFSDP_FUSED_OR_LIBRARY(name)                                                       \
  [[gnu::always_inline]] static inline float name(float x) { return vector_##name<A>(x); } \
  static inline double name(double x) { return std::name(x); }
  OFSDP_FUSED_OR_LIBRARY(exp)
  OFSDP_FUSED_OR_LIBRARY(expm1)
  OFSDP_FUSED_OR_LIBRARY(log)
  OFSDP_FUSED_OR_LIBRARY(log1p)
  OFSDP_FUSED_OR_LIBRARY(erf)
  OFSDP_FUSED_OR_LIBRARY(tanh)
#undef OFSDP_FUSED_OR_LIBRARY

#define OFSDP_VECTOR_OR_LIBRARY(name)                                                   \
  [[gnu::always_inline]] static inline float name(float x) { return vector_##name(x); } \
  static inline double name(double x) { return std::name(x); }
  OFSDP_VECTOR_OR_LIBRARY(sin)
  OFSDP_VECTOR_OR_LIBRARY(cos)
  OFSDP_VECTOR_OR_LIBRARY(tan)
  OFSDP_VECTOR_OR_LIBRARY(asin)
  OFSDP_VECTOR_OR_LIBRARY(acos)
  OFSDP_VECTOR_OR_LIBRARY(atan)
  OFSDP_VECTOR_OR_LIBRARY(sinh)
  OFSDP_VECTOR_OR_LIBRARY(cosh)
  OFSDP_VECTOR_OR_LIBRARY(asinh)
  OFSDP_VECTOR_OR_LIBRARY(acosh)
  OFSDP_VECTOR_OR_LIBRARY(atanh)
#undef OFSDP_VECTOR_OR_LIBRARY

  [[gnu::always_inline]] static inline float pow(float x, float e) { return vector_pow(x, e); }
  static inline double pow(double x, double e) { return std::pow(x, e); }
  template <typename T>
  static inline T fmod(T a, T b) {
    return std::fmod(a, b);
  }
  template <typename T>
  static inline T copysign(T a, T b) {
    return std::copysign(a, b);
  }
};
using FloatMath = FloatMathBy<SeparateMultiplyAdd>;

}  // namespace ofsdp::kernels
