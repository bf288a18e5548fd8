// <cmath>'s functions under one name for float and double, so that a formula is written once:
// float32 calls the vector forms in kernels/cpu/vector_math.h, double the C library.
//
//   FloatMathBy<A>::exp(x)   type M in kernels/formulas; A says how to add products
//                            (kernels/cpu/vector_math.h)
//   FloatMath                the same on every processor
//
// Call from an OFSDP_MULTIARCH function or a fastest_version loop.
#pragma once

#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/formulas/activation.h"

namespace ofsdp::kernels {

template <typename A>
struct FloatMathBy {
// Functions that gcc turns into an instruction in both types.
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

#define OFSDP_VECTOR_OR_LIBRARY(name, vector)                                    \
  [[gnu::always_inline]] static inline float name(float x) { return vector(x); } \
  static inline double name(double x) { return std::name(x); }
  OFSDP_VECTOR_OR_LIBRARY(exp, vector_exp<A>)
  OFSDP_VECTOR_OR_LIBRARY(expm1, vector_expm1<A>)
  OFSDP_VECTOR_OR_LIBRARY(log, vector_log<A>)
  OFSDP_VECTOR_OR_LIBRARY(log1p, vector_log1p<A>)
  OFSDP_VECTOR_OR_LIBRARY(erf, vector_erf<A>)
  OFSDP_VECTOR_OR_LIBRARY(tanh, vector_tanh<A>)
  OFSDP_VECTOR_OR_LIBRARY(sin, vector_sin)
  OFSDP_VECTOR_OR_LIBRARY(cos, vector_cos)
  OFSDP_VECTOR_OR_LIBRARY(tan, vector_tan)
  OFSDP_VECTOR_OR_LIBRARY(asin, vector_asin)
  OFSDP_VECTOR_OR_LIBRARY(acos, vector_acos)
  OFSDP_VECTOR_OR_LIBRARY(atan, vector_atan)
  OFSDP_VECTOR_OR_LIBRARY(sinh, vector_sinh)
  OFSDP_VECTOR_OR_LIBRARY(cosh, vector_cosh)
  OFSDP_VECTOR_OR_LIBRARY(asinh, vector_asinh)
  OFSDP_VECTOR_OR_LIBRARY(acosh, vector_acosh)
  OFSDP_VECTOR_OR_LIBRARY(atanh, vector_atanh)
#undef OFSDP_VECTOR_OR_LIBRARY

  [[gnu::always_inline]] static inline float gelu_slope(float x) { return vector_gelu_slope<A>(x); }
  static inline double gelu_slope(double x) { return kernels::gelu_slope<FloatMathBy>(x); }
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
