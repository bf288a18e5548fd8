// Both forms of Gelu, x P(X <= x) for a normal X, and their derivatives:
//
//   erf    x (1 + erf(x / sqrt 2)) / 2;   d = (1 + erf(x / sqrt 2)) / 2 + x e^(-x^2 / 2) / sqrt(2
//          pi)
//   tanh   x (1 + tanh u) / 2 = x s with u = sqrt(2 / pi) (x + 0.044715 x^3), s = 1 / (1 + e^-2u);
//          d = s + x s (1 - s) 2 u'
//
// Conventions: kernels/formulas/activation.h. Hendrycks and Gimpel, arXiv:1606.08415.
#pragma once

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

template <typename M, typename T>
OFSDP_HD T gelu_of(T x) {
  return T(0.5) * x * (T(1) + M::erf(x * T(0.70710678118654752440)));
}
template <typename M, typename T>
OFSDP_HD T gelu_slope(T x) {
  const T below = T(0.5) * (T(1) + M::erf(x * T(0.70710678118654752440)));
  return below + x * (T(0.39894228040143267794) * M::exp(T(-0.5) * x * x));
}
// e^-2u. Beyond +-12, where s is 0 or 1, u stays finite.
template <typename M, typename T>
OFSDP_HD T gelu_tanh_power(T x) {
  return M::exp(T(-1.59576912160573071175) * x * (T(1) + T(0.044715) * x * x));
}
template <typename M, typename T>
OFSDP_HD T gelu_tanh_of(T x) {
  return x / (T(1) + gelu_tanh_power<M>(x));
}
template <typename M, typename T>
OFSDP_HD T gelu_tanh_slope(T x) {
  T v = x > T(12) ? T(12) : x;
  v = v < T(-12) ? T(-12) : v;
  const T s = T(1) / (T(1) + gelu_tanh_power<M>(v));
  const T twice = T(1.59576912160573071175) * (T(1) + T(0.134145) * v * v);
  return s + v * s * (T(1) - s) * twice;
}

}  // namespace ofsdp::kernels
