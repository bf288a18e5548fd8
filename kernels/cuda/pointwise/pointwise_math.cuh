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
    case Pointwise::kNeg:
      return -x;
    case Pointwise::kAbs:
      return std::fabs(x);
    case Pointwise::kSqrt:
      return std::sqrt(x);
    case Pointwise::kExp:
      return std::exp(x);
    case Pointwise::kLog:
      return std::log(x);
    case Pointwise::kErf:
      return std::erf(x);
    case Pointwise::kTanh:
      return std::tanh(x);
    case Pointwise::kSigmoid:
      return sigmoid_of(x);
    case Pointwise::kRelu:
      return relu_of(x);
    case Pointwise::kGelu:
      return gelu_of(x);
    case Pointwise::kGeluTanh:
      return gelu_tanh_of(x);
    case Pointwise::kSwish:
      return x * sigmoid_of(a * x);
    case Pointwise::kReciprocal:
      return T(1) / x;
    case Pointwise::kSin:
      return std::sin(x);
    case Pointwise::kCos:
      return std::cos(x);
    case Pointwise::kTan:
      return std::tan(x);
    case Pointwise::kAsin:
      return std::asin(x);
    case Pointwise::kAcos:
      return std::acos(x);
    case Pointwise::kAtan:
      return std::atan(x);
    case Pointwise::kSinh:
      return std::sinh(x);
    case Pointwise::kCosh:
      return std::cosh(x);
    case Pointwise::kAsinh:
      return std::asinh(x);
    case Pointwise::kAcosh:
      return std::acosh(x);
    case Pointwise::kAtanh:
      return std::atanh(x);
    case Pointwise::kFloor:
      return std::floor(x);
    case Pointwise::kCeil:
      return std::ceil(x);
    case Pointwise::kRound:
      return std::rint(x);
    case Pointwise::kSign:
      return sign_of(x);
    case Pointwise::kSoftplus:
      return softplus_of(x);
    case Pointwise::kSoftsign:
      return x / (T(1) + std::fabs(x));
    case Pointwise::kElu:
      return x > T(0) ? x : a * std::expm1(x);
    case Pointwise::kCelu:
      return x > T(0) ? x : a * std::expm1(x / a);
    case Pointwise::kSelu:
      return x > T(0) ? b * x : b * (a * std::expm1(x));
    case Pointwise::kScale:
      return x * a;
    case Pointwise::kHardSigmoid:
      return hard_sigmoid_of(x, a, b);
    case Pointwise::kHardSwish:
      return hard_swish_of(x);
    case Pointwise::kLeakyRelu:
      return x < T(0) ? a * x : x;
    case Pointwise::kMish:
      return mish_of(x);
    case Pointwise::kThresholdedRelu:
      return x > a ? x : T(0);
    case Pointwise::kShrink:
      return shrink_of(x, a, b);
    case Pointwise::kClip:
      return clip_of(x, a, b);
    default:
      return x;
  }
}

// Of dy and x, or y where the header says so.
template <typename T>
__host__ __device__ inline T gradient_of(Pointwise op, T d, T x, T a, T b) {
  switch (op) {
    case Pointwise::kAbsGrad:
      return x > T(0) ? d : x < T(0) ? -d : T(0);
    case Pointwise::kErfGrad:
      return erf_grad(d, x);
    case Pointwise::kTanhGrad:
      return tanh_grad(d, x);
    case Pointwise::kSigmoidGrad:
      return sigmoid_grad(d, x);
    case Pointwise::kReluGrad:
      return relu_grad(d, x);
    case Pointwise::kGeluGrad:
      return d * gelu_slope(x);
    case Pointwise::kGeluTanhGrad:
      return d * gelu_tanh_slope(x);
    case Pointwise::kSwishGrad: {
      const T s = sigmoid_of(a * x);
      return d * (s + a * x * s * (T(1) - s));
    }
    case Pointwise::kSoftplusGrad:
      return softplus_grad(d, x);
    case Pointwise::kSoftsignGrad:
      return d / ((T(1) + std::fabs(x)) * (T(1) + std::fabs(x)));
    case Pointwise::kEluGrad:
      return x > T(0) ? d : d * a * std::exp(x);
    case Pointwise::kCeluGrad:
      return x > T(0) ? d : d * std::exp(x / a);
    case Pointwise::kSeluGrad:
      return x > T(0) ? d * b : d * b * a * std::exp(x);
    case Pointwise::kHardSigmoidGrad:
      return a * x + b > T(0) && a * x + b < T(1) ? a * d : T(0);
    case Pointwise::kHardSwishGrad:
      return x >= T(3) ? d : (x <= T(-3) ? T(0) : d * (x * T(1.0 / 3) + T(0.5)));
    case Pointwise::kLeakyReluGrad:
      return x > T(0) ? d : a * d;
    case Pointwise::kMishGrad:
      return d * mish_slope(x);
    case Pointwise::kThresholdedReluGrad:
      return x > a ? d : T(0);
    case Pointwise::kShrinkGrad:
      return x < -a || x > a ? d : T(0);
    case Pointwise::kClipGrad:
      return x >= a && x <= b ? d : T(0);
    default:
      return d;
  }
}

template <typename T>
__host__ __device__ inline T binary_of(Pointwise op, T x, T y, T a, T b) {
  switch (op) {
    case Pointwise::kAdd:
      return x + y;
    case Pointwise::kSub:
      return x - y;
    case Pointwise::kMul:
      return x * y;
    case Pointwise::kDiv:
      return x / y;
    case Pointwise::kPow:
      return pow_of(x, y);
    case Pointwise::kMax:
      return x > y || x != x ? x : y;
    case Pointwise::kMin:
      return x < y || x != x ? x : y;
    case Pointwise::kPRelu:
      return x < T(0) ? x * y : x;
    case Pointwise::kMod:
      return mod_of(x, y, a != T(0));
    case Pointwise::kBiasGelu:
      return gelu_of(x + y);
    case Pointwise::kFastGelu:
      return gelu_tanh_of(x + y);
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
    case Pointwise::kNeg:
      return static_cast<T>(U(0) - u);
    case Pointwise::kAbs:
      return x < 0 ? static_cast<T>(U(0) - u) : x;
    case Pointwise::kSign:
      return static_cast<T>((x > 0) - (x < 0));
    case Pointwise::kRelu:
      return x < 0 ? T(0) : x;
    case Pointwise::kAdd:
      return static_cast<T>(u + v);
    case Pointwise::kSub:
      return static_cast<T>(u - v);
    case Pointwise::kMul:
      return static_cast<T>(u * v);
    case Pointwise::kDiv:
      return y == 0 ? T(0) : y == -1 ? static_cast<T>(U(0) - u) : x / y;
    case Pointwise::kMax:
      return x > y ? x : y;
    case Pointwise::kMin:
      return x < y ? x : y;
    case Pointwise::kMod:
      return integer_rest(x, y, numbers.a != 0);
    case Pointwise::kClip:
      return integer_clip(x, numbers.a, numbers.b);
    case Pointwise::kBitwiseNot:
      return static_cast<T>(~u);
    case Pointwise::kBitwiseAnd:
      return static_cast<T>(u & v);
    case Pointwise::kBitwiseOr:
      return static_cast<T>(u | v);
    case Pointwise::kBitwiseXor:
      return static_cast<T>(u ^ v);
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
    case Pointwise::kEqual:
      return x == y;
    case Pointwise::kLess:
      return x < y;
    case Pointwise::kLessOrEqual:
      return x <= y;
    case Pointwise::kGreater:
      return x > y;
    case Pointwise::kGreaterOrEqual:
      return x >= y;
    case Pointwise::kAnd:
      return x != T(0) && y != T(0);
    case Pointwise::kOr:
      return x != T(0) || y != T(0);
    case Pointwise::kXor:
      return (x != T(0)) != (y != T(0));
    case Pointwise::kNot:
      return x == T(0);
    case Pointwise::kIsInf:  // nothing else is left of itself alone
      return x == x && x - x != T(0) && (x > T(0) ? numbers.a != 0 : numbers.b != 0);
    default:
      return x != x;
  }
}

}  // namespace ofsdp::kernels::cuda
