// Activation functions and their gradients for one element, written once for CPU loops, chains,
// CUDA kernels and NVRTC.
//
//   NAME_of<M>(x, ...)     the function; the node's numbers (alpha, ...) follow x
//   NAME_grad<M>(d, x, ..) its gradient from d, the result's gradient, and x; relu, sigmoid and
//                          tanh take the result y instead of x
//   NAME_slope<M>(x)       its derivative
//
// T is float or double. M has the mathematical functions for both types as static members: fabs,
// exp, expm1, log1p, erf, ... (FloatMath in kernels/cpu/real_math.h). NaN stays NaN unless a
// comment says otherwise. CUDA sources use these names. References and samples of operators do not
// use these functions: they are the oracle.
#pragma once

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

// Comparisons with NaN are false: the gradient is 0 if y is NaN.
template <typename T>
OFSDP_HD T relu_of(T x) {
  return x < T(0) ? T(0) : x;
}
template <typename T>
OFSDP_HD T relu_grad(T d, T y) {
  return y > T(0) ? d : T(0);
}
template <typename T>
OFSDP_HD T leaky_relu_of(T x, T alpha) {
  return x < T(0) ? alpha * x : x;
}
template <typename T>
OFSDP_HD T leaky_relu_grad(T d, T x, T alpha) {
  return x > T(0) ? d : alpha * d;
}
template <typename T>
OFSDP_HD T thresholded_relu_of(T x, T alpha) {
  return x > alpha ? x : T(0);
}
template <typename T>
OFSDP_HD T thresholded_relu_grad(T d, T x, T alpha) {
  return x > alpha ? d : T(0);
}

template <typename M, typename T>
OFSDP_HD T sigmoid_of(T x) {
  return T(1) / (T(1) + M::exp(-x));
}
template <typename T>
OFSDP_HD T sigmoid_grad(T d, T y) {
  return d * y * (T(1) - y);
}
template <typename T>
OFSDP_HD T tanh_grad(T d, T y) {
  return d * (T(1) - y * y);
}
template <typename M, typename T>
OFSDP_HD T erf_grad(T d, T x) {
  return d * (T(1.12837916709551257390) * M::exp(-x * x));
}

// max(x, 0) + ln(1 + e^-|x|) does not overflow.
template <typename M, typename T>
OFSDP_HD T softplus_of(T x) {
  return (x < T(0) ? T(0) : x) + M::log1p(M::exp(-M::fabs(x)));
}
template <typename M, typename T>
OFSDP_HD T softplus_grad(T d, T x) {
  return d * sigmoid_of<M>(x);
}
template <typename M, typename T>
OFSDP_HD T softsign_of(T x) {
  return x / (T(1) + M::fabs(x));
}
template <typename M, typename T>
OFSDP_HD T softsign_grad(T d, T x) {
  return d / ((T(1) + M::fabs(x)) * (T(1) + M::fabs(x)));
}

template <typename M, typename T>
OFSDP_HD T elu_of(T x, T alpha) {
  return x > T(0) ? x : alpha * M::expm1(x);
}
template <typename M, typename T>
OFSDP_HD T elu_grad(T d, T x, T alpha) {
  return x > T(0) ? d : d * (alpha * M::exp(x));
}
template <typename M, typename T>
OFSDP_HD T celu_of(T x, T alpha) {
  return x > T(0) ? x : alpha * M::expm1(x / alpha);
}
template <typename M, typename T>
OFSDP_HD T celu_grad(T d, T x, T alpha) {
  return x > T(0) ? d : d * M::exp(x / alpha);
}
template <typename M, typename T>
OFSDP_HD T selu_of(T x, T alpha, T gamma) {
  return gamma * (x > T(0) ? x : alpha * M::expm1(x));
}
template <typename M, typename T>
OFSDP_HD T selu_grad(T d, T x, T alpha, T gamma) {
  return d * gamma * (x > T(0) ? T(1) : alpha * M::exp(x));
}

template <typename T>
OFSDP_HD T hard_sigmoid_of(T x, T alpha, T beta) {
  const T line = alpha * x + beta;
  const T below = line > T(1) ? T(1) : line;
  return below < T(0) ? T(0) : below;
}
template <typename T>
OFSDP_HD T hard_sigmoid_grad(T d, T x, T alpha, T beta) {
  const T line = alpha * x + beta;
  return line > T(0) && line < T(1) ? alpha * d : T(0);
}
template <typename T>
OFSDP_HD T hard_swish_of(T x) {
  const T gate = x * T(1.0 / 6) + T(0.5);
  const T below = gate > T(1) ? T(1) : gate;
  return x * (below < T(0) ? T(0) : below);
}
template <typename T>
OFSDP_HD T hard_swish_grad(T d, T x) {
  return x >= T(3) ? d : (x <= T(-3) ? T(0) : d * (x * T(1.0 / 3) + T(0.5)));
}

// x / (1 + e^-(alpha x)): Swish, SiLU with alpha 1, QuickGelu with alpha 1.702.
template <typename M, typename T>
OFSDP_HD T swish_of(T x, T alpha) {
  return x / (T(1) + M::exp(-alpha * x));
}
template <typename M, typename T>
OFSDP_HD T swish_grad(T d, T x, T alpha) {
  const T v = alpha * x;
  const T s = sigmoid_of<M>(v);
  return d * (s + v * s * (T(1) - s));
}

// x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2). Beyond 20 it is x.
template <typename M, typename T>
OFSDP_HD T mish_of(T x) {
  const T e = M::exp(x > T(20) ? T(20) : x);
  const T n = e * (e + T(2));
  return x * (n / (n + T(2)));
}
template <typename M, typename T>
OFSDP_HD T mish_slope(T x) {
  const T v = x > T(20) ? T(20) : x;
  const T e = M::exp(v);
  const T n = e * (e + T(2));
  const T slope = T(4) * (n + T(1)) / ((n + T(2)) * (n + T(2)));
  return n / (n + T(2)) + v * slope * (e / (e + T(1)));
}

template <typename T>
OFSDP_HD T shrink_of(T x, T edge, T shift) {
  const T high = x > edge ? x - shift : T(0);
  return x < -edge ? x + shift : high;
}
template <typename T>
OFSDP_HD T shrink_grad(T d, T x, T edge) {
  return x < -edge || x > edge ? d : T(0);
}

// Bounds that do not bind are infinite, or an integer type's limits. NaN stays NaN, with gradient
// 0. If low >= high, the result is constant.
template <typename T>
OFSDP_HD T clip_of(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}
template <typename T>
OFSDP_HD T clip_grad(T d, T x, T low, T high) {
  return low < high && x >= low && x <= high ? d : T(0);
}

template <typename T>
OFSDP_HD T abs_grad(T d, T x) {
  return x > T(0) ? d : (x < T(0) ? -d : T(0));
}
template <typename T>
OFSDP_HD T sign_of(T x) {
  return x > T(0) ? T(1) : (x < T(0) ? T(-1) : x);
}

// The remainder a / b with the sign of b, or (truncated) with the sign of a.
template <typename M, typename T>
OFSDP_HD T mod_of(T a, T b, bool truncated) {
  const T rest = M::fmod(a, b);
  if (truncated) return rest;
  if (rest == T(0)) return M::copysign(rest, b);
  return (rest < T(0)) == (b < T(0)) ? rest : rest + b;
}

// Both forms of Gelu, x P(X <= x) for a normal X. Hendrycks and Gimpel, arXiv:1606.08415.
//
//   erf    x (1 + erf(x / sqrt 2)) / 2
//          slope (1 + erf(x / sqrt 2)) / 2 + x e^(-x^2 / 2) / sqrt(2 pi)
//   tanh   x (1 + tanh u) / 2 = x s with u = sqrt(2 / pi) (x + 0.044715 x^3), s = 1 / (1 + e^-2u)
//          slope s + x s (1 - s) 2 u'

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
