// The two forms of Gelu and their derivatives, for Gelu, com.microsoft's FastGelu and BiasGelu, and chains.
// x P(X <= x) of a normal X:
//
//   erf    x (1 + erf(x / sqrt 2)) / 2;   d = (1 + erf(x / sqrt 2)) / 2 + x e^(-x^2 / 2) / sqrt(2 pi)
//   tanh   x (1 + tanh u) / 2 = x s with u = sqrt(2 / pi) (x + 0.044715 x^3), s = 1 / (1 + e^-2u);
//          d = s + x s (1 - s) 2 u'
//
// Threads: any. Call from an OFSDP_MULTIARCH function.
#pragma once

#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/real_math.h"

namespace ofsdp::kernels {

template <typename T>
OFSDP_INLINE T gelu_erf(T x) {
  return T(0.5) * x * (T{1} + math::erf(x * T(0.70710678118654752440)));
}

template <typename T>
OFSDP_INLINE T gelu_erf_slope(T x) {
  const T below = T(0.5) * (T{1} + math::erf(x * T(0.70710678118654752440)));
  return below + x * (T(0.39894228040143267794) * math::exp(T(-0.5) * x * x));
}

// e^-2u; beyond +-12, where s is 0 or 1, u stays finite.
template <typename T>
OFSDP_INLINE T gelu_tanh_power(T x) {
  return math::exp(T(-1.59576912160573071175) * x * (T{1} + T(0.044715) * x * x));
}

template <typename T>
OFSDP_INLINE T gelu_tanh(T x) {
  return x / (T{1} + gelu_tanh_power(x));
}

template <typename T>
OFSDP_INLINE T gelu_tanh_slope(T x) {
  T v = x > T{12} ? T{12} : x;
  v = v < T{-12} ? T{-12} : v;
  const T s = T{1} / (T{1} + gelu_tanh_power(v));
  const T twice = T(1.59576912160573071175) * (T{1} + T(0.134145) * v * v);
  return s + v * s * (T{1} - s) * twice;
}

}  // namespace ofsdp::kernels
