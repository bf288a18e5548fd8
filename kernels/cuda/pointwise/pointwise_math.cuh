// The formulas of pointwise.h for one element; T is float or double. kernels/ops/NAME.cpp has the same ones.
#pragma once

#include <cmath>

#include "kernels/cuda/pointwise/formulas.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {

template <typename T>
__host__ __device__ inline T mish_slope(T x) {
  const T v = x > T(20) ? T(20) : x;
  const T e = std::exp(v);
  const T n = e * (e + T(2));
  const T slope = T(4) * (n + T(1)) / ((n + T(2)) * (n + T(2)));
  return n / (n + T(2)) + v * slope * (e / (e + T(1)));
}
template <typename T>
__host__ __device__ inline T mish_of(T x) {
  const T e = std::exp(x > T(20) ? T(20) : x);
  const T n = e * (e + T(2));
  return x * (n / (n + T(2)));
}
template <typename T>
__host__ __device__ inline T hard_swish_of(T x) {
  const T gate = x * T(1.0 / 6) + T(0.5);
  const T below = gate > T(1) ? T(1) : gate;
  return x * (below < T(0) ? T(0) : below);
}
template <typename T>
__host__ __device__ inline T shrink_of(T x, T edge, T shift) {
  return x > edge ? x - shift : x < -edge ? x + shift : T(0);
}
template <typename T>
__host__ __device__ inline T hard_sigmoid_of(T x, T alpha, T beta) {
  const T v = alpha * x + beta;
  const T below = v > T(1) ? T(1) : v;
  return below < T(0) ? T(0) : below;
}
template <typename T>
__host__ __device__ inline T clip_of(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}
template <typename T>
__host__ __device__ inline T sign_of(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}
template <typename T>
__host__ __device__ inline T mod_of(T a, T b, bool truncated) {
  const T rest = std::fmod(a, b);
  if (truncated) return rest;
  if (rest == T(0)) return std::copysign(rest, b);
  return (rest < T(0)) == (b < T(0)) ? rest : rest + b;
}
// 2 and 0.5 are what variances and norms are written with.
template <typename T>
__host__ __device__ inline T pow_of(T x, T e) {
  if (e == T(2)) return x * x;
  if (e == T(0.5) && x >= T(0)) return std::sqrt(x);
  return std::pow(x, e);
}

template <typename T>
__host__ __device__ inline T unary_of(Pointwise op, T x, T a, T b) {
  switch (op) {
    OFSDP_CASE(Pointwise::kNeg, -x);
    OFSDP_CASE(Pointwise::kAbs, std::fabs(x));
    OFSDP_CASE(Pointwise::kSqrt, std::sqrt(x));
    OFSDP_CASE(Pointwise::kExp, std::exp(x));
    OFSDP_CASE(Pointwise::kLog, std::log(x));
    OFSDP_CASE(Pointwise::kErf, std::erf(x));
    OFSDP_CASE(Pointwise::kTanh, std::tanh(x));
    OFSDP_CASE(Pointwise::kSigmoid, sigmoid_of(x));
    OFSDP_CASE(Pointwise::kRelu, relu_of(x));
    OFSDP_CASE(Pointwise::kGelu, gelu_of(x));
    OFSDP_CASE(Pointwise::kGeluTanh, gelu_tanh_of(x));
    OFSDP_CASE(Pointwise::kSwish, x * sigmoid_of(a * x));
    OFSDP_CASE(Pointwise::kReciprocal, T(1) / x);
    OFSDP_CASE(Pointwise::kSin, std::sin(x));
    OFSDP_CASE(Pointwise::kCos, std::cos(x));
    OFSDP_CASE(Pointwise::kTan, std::tan(x));
    OFSDP_CASE(Pointwise::kAsin, std::asin(x));
    OFSDP_CASE(Pointwise::kAcos, std::acos(x));
    OFSDP_CASE(Pointwise::kAtan, std::atan(x));
    OFSDP_CASE(Pointwise::kSinh, std::sinh(x));
    OFSDP_CASE(Pointwise::kCosh, std::cosh(x));
    OFSDP_CASE(Pointwise::kAsinh, std::asinh(x));
    OFSDP_CASE(Pointwise::kAcosh, std::acosh(x));
    OFSDP_CASE(Pointwise::kAtanh, std::atanh(x));
    OFSDP_CASE(Pointwise::kFloor, std::floor(x));
    OFSDP_CASE(Pointwise::kCeil, std::ceil(x));
    OFSDP_CASE(Pointwise::kRound, std::rint(x));
    OFSDP_CASE(Pointwise::kSign, sign_of(x));
    OFSDP_CASE(Pointwise::kSoftplus, softplus_of(x));
    OFSDP_CASE(Pointwise::kSoftsign, x / (T(1) + std::fabs(x)));
    OFSDP_CASE(Pointwise::kElu, x > T(0) ? x : a * std::expm1(x));
    OFSDP_CASE(Pointwise::kCelu, x > T(0) ? x : a * std::expm1(x / a));
    OFSDP_CASE(Pointwise::kSelu, x > T(0) ? b * x : b * (a * std::expm1(x)));
    OFSDP_CASE(Pointwise::kScale, x * a);
    OFSDP_CASE(Pointwise::kHardSigmoid, hard_sigmoid_of(x, a, b));
    OFSDP_CASE(Pointwise::kHardSwish, hard_swish_of(x));
    OFSDP_CASE(Pointwise::kLeakyRelu, x < T(0) ? a * x : x);
    OFSDP_CASE(Pointwise::kMish, mish_of(x));
    OFSDP_CASE(Pointwise::kThresholdedRelu, x > a ? x : T(0));
    OFSDP_CASE(Pointwise::kShrink, shrink_of(x, a, b));
    OFSDP_CASE(Pointwise::kClip, clip_of(x, a, b));
    default:
      return x;
  }
}

// Of dy and x, or y where the header says so.
template <typename T>
__host__ __device__ inline T gradient_of(Pointwise op, T d, T x, T a, T b) {
  switch (op) {
    OFSDP_CASE(Pointwise::kAbsGrad, x > T(0) ? d : x < T(0) ? -d : T(0));
    OFSDP_CASE(Pointwise::kErfGrad, erf_grad(d, x));
    OFSDP_CASE(Pointwise::kTanhGrad, tanh_grad(d, x));
    OFSDP_CASE(Pointwise::kSigmoidGrad, sigmoid_grad(d, x));
    OFSDP_CASE(Pointwise::kReluGrad, relu_grad(d, x));
    OFSDP_CASE(Pointwise::kGeluGrad, d * gelu_slope(x));
    OFSDP_CASE(Pointwise::kGeluTanhGrad, d * gelu_tanh_slope(x));
    case Pointwise::kSwishGrad: {
      const T s = sigmoid_of(a * x);
      return d * (s + a * x * s * (T(1) - s));
    }
      OFSDP_CASE(Pointwise::kSoftplusGrad, softplus_grad(d, x));
      OFSDP_CASE(Pointwise::kSoftsignGrad, d / ((T(1) + std::fabs(x)) * (T(1) + std::fabs(x))));
      OFSDP_CASE(Pointwise::kEluGrad, x > T(0) ? d : d * a * std::exp(x));
      OFSDP_CASE(Pointwise::kCeluGrad, x > T(0) ? d : d * std::exp(x / a));
      OFSDP_CASE(Pointwise::kSeluGrad, x > T(0) ? d * b : d * b * a * std::exp(x));
      OFSDP_CASE(Pointwise::kHardSigmoidGrad, a * x + b > T(0) && a * x + b < T(1) ? a * d : T(0));
      OFSDP_CASE(Pointwise::kHardSwishGrad,
                 x >= T(3) ? d : (x <= T(-3) ? T(0) : d * (x * T(1.0 / 3) + T(0.5))));
      OFSDP_CASE(Pointwise::kLeakyReluGrad, x > T(0) ? d : a * d);
      OFSDP_CASE(Pointwise::kMishGrad, d * mish_slope(x));
      OFSDP_CASE(Pointwise::kThresholdedReluGrad, x > a ? d : T(0));
      OFSDP_CASE(Pointwise::kShrinkGrad, x < -a || x > a ? d : T(0));
      OFSDP_CASE(Pointwise::kClipGrad, x >= a && x <= b ? d : T(0));
    default:
      return d;
  }
}

template <typename T>
__host__ __device__ inline T binary_of(Pointwise op, T x, T y, T a, T b) {
  switch (op) {
    OFSDP_CASE(Pointwise::kAdd, x + y);
    OFSDP_CASE(Pointwise::kSub, x - y);
    OFSDP_CASE(Pointwise::kMul, x * y);
    OFSDP_CASE(Pointwise::kDiv, x / y);
    OFSDP_CASE(Pointwise::kPow, pow_of(x, y));
    OFSDP_CASE(Pointwise::kMax, x > y || x != x ? x : y);
    OFSDP_CASE(Pointwise::kMin, x < y || x != x ? x : y);
    OFSDP_CASE(Pointwise::kPRelu, x < T(0) ? x * y : x);
    OFSDP_CASE(Pointwise::kMod, mod_of(x, y, a != T(0)));
    OFSDP_CASE(Pointwise::kBiasGelu, gelu_of(x + y));
    OFSDP_CASE(Pointwise::kFastGelu, gelu_tanh_of(x + y));
    default:
      return gradient_of(op, x, y, a, b);
  }
}

// Of integers the rest has the sign of y, or (truncated) of x; of a division by 0 it is 0.
template <typename T>
__host__ __device__ inline T integer_rest(T x, T y, bool truncated) {
  if (y == 0 || y == -1) return 0;
  const T rest = x % y;
  return truncated || rest == 0 || (rest < 0) == (y < 0) ? rest : rest + y;
}
// Bounds are rounded to whole numbers by who gives them; infinite ones are none.
template <typename T>
__host__ __device__ inline T integer_clip(T x, double low, double high) {
  const T raised = static_cast<double>(x) < low ? static_cast<T>(low) : x;
  return static_cast<double>(raised) > high ? static_cast<T>(high) : raised;
}

// Two's complement: what does not fit wraps.
template <typename T>
__host__ __device__ inline T integer_of(Pointwise op, T x, T y, PointwiseNumbers numbers) {
  using U = std::make_unsigned_t<T>;
  const U u = static_cast<U>(x), v = static_cast<U>(y);
  switch (op) {
    OFSDP_CASE(Pointwise::kNeg, static_cast<T>(U(0) - u));
    OFSDP_CASE(Pointwise::kAbs, x < 0 ? static_cast<T>(U(0) - u) : x);
    OFSDP_CASE(Pointwise::kSign, static_cast<T>((x > 0) - (x < 0)));
    OFSDP_CASE(Pointwise::kRelu, x < 0 ? T(0) : x);
    OFSDP_CASE(Pointwise::kAdd, static_cast<T>(u + v));
    OFSDP_CASE(Pointwise::kSub, static_cast<T>(u - v));
    OFSDP_CASE(Pointwise::kMul, static_cast<T>(u * v));
    OFSDP_CASE(Pointwise::kDiv, y == 0 ? T(0) : y == -1 ? static_cast<T>(U(0) - u) : x / y);
    OFSDP_CASE(Pointwise::kMax, x > y ? x : y);
    OFSDP_CASE(Pointwise::kMin, x < y ? x : y);
    OFSDP_CASE(Pointwise::kMod, integer_rest(x, y, numbers.a != 0));
    OFSDP_CASE(Pointwise::kClip, integer_clip(x, numbers.a, numbers.b));
    OFSDP_CASE(Pointwise::kBitwiseNot, static_cast<T>(~u));
    OFSDP_CASE(Pointwise::kBitwiseAnd, static_cast<T>(u & v));
    OFSDP_CASE(Pointwise::kBitwiseOr, static_cast<T>(u | v));
    OFSDP_CASE(Pointwise::kBitwiseXor, static_cast<T>(u ^ v));
    case Pointwise::kBitShift: {
      const bool all = y < 0 || y >= T(8 * sizeof(T));
      if (numbers.a != 0) return all ? T(0) : static_cast<T>(u << v);
      return static_cast<T>(x >> (all ? T(8 * sizeof(T) - 1) : y));
    }
    default:
      return x;
  }
}

template <typename T>
__host__ __device__ inline bool test_of(Pointwise op, T x, T y, PointwiseNumbers numbers) {
  switch (op) {
    OFSDP_CASE(Pointwise::kEqual, x == y);
    OFSDP_CASE(Pointwise::kLess, x < y);
    OFSDP_CASE(Pointwise::kLessOrEqual, x <= y);
    OFSDP_CASE(Pointwise::kGreater, x > y);
    OFSDP_CASE(Pointwise::kGreaterOrEqual, x >= y);
    OFSDP_CASE(Pointwise::kAnd, x != T(0) && y != T(0));
    OFSDP_CASE(Pointwise::kOr, x != T(0) || y != T(0));
    OFSDP_CASE(Pointwise::kXor, (x != T(0)) != (y != T(0)));
    OFSDP_CASE(Pointwise::kNot, x == T(0));
    case Pointwise::kIsInf:  // nothing else is left of itself alone
      return x == x && x - x != T(0) && (x > T(0) ? numbers.a != 0 : numbers.b != 0);
    default:
      return x != x;
  }
}

}  // namespace ofsdp::kernels::cuda
