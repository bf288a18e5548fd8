// The formulas of pointwise.h for one element; T is float or double. Swish and the gradients of Elu and
// Selu multiply in another order than kernels/formulas, so their last bits differ from the CPU's.
#pragma once

#include <cmath>

#include "kernels/cuda/pointwise/formulas.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {

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
    OFSDP_CASE(Pointwise::kSigmoid, sigmoid_of<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kRelu, relu_of(x));
    OFSDP_CASE(Pointwise::kGelu, gelu_of<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kGeluTanh, gelu_tanh_of<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kSwish, x * sigmoid_of<DeviceMath>(a * x));
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
    OFSDP_CASE(Pointwise::kSoftplus, softplus_of<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kSoftsign, softsign_of<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kElu, elu_of<DeviceMath>(x, a));
    OFSDP_CASE(Pointwise::kCelu, celu_of<DeviceMath>(x, a));
    OFSDP_CASE(Pointwise::kSelu, selu_of<DeviceMath>(x, a, b));
    OFSDP_CASE(Pointwise::kScale, x * a);
    OFSDP_CASE(Pointwise::kHardSigmoid, hard_sigmoid_of(x, a, b));
    OFSDP_CASE(Pointwise::kHardSwish, hard_swish_of(x));
    OFSDP_CASE(Pointwise::kLeakyRelu, leaky_relu_of(x, a));
    OFSDP_CASE(Pointwise::kMish, mish_of<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kThresholdedRelu, thresholded_relu_of(x, a));
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
    OFSDP_CASE(Pointwise::kAbsGrad, abs_grad(d, x));
    OFSDP_CASE(Pointwise::kErfGrad, erf_grad<DeviceMath>(d, x));
    OFSDP_CASE(Pointwise::kTanhGrad, tanh_grad(d, x));
    OFSDP_CASE(Pointwise::kSigmoidGrad, sigmoid_grad(d, x));
    OFSDP_CASE(Pointwise::kReluGrad, relu_grad(d, x));
    OFSDP_CASE(Pointwise::kGeluGrad, d * gelu_slope<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kGeluTanhGrad, d * gelu_tanh_slope<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kSwishGrad, swish_grad<DeviceMath>(d, x, a));
    OFSDP_CASE(Pointwise::kSoftplusGrad, softplus_grad<DeviceMath>(d, x));
    OFSDP_CASE(Pointwise::kSoftsignGrad, softsign_grad<DeviceMath>(d, x));
    OFSDP_CASE(Pointwise::kEluGrad, x > T(0) ? d : d * a * std::exp(x));
    OFSDP_CASE(Pointwise::kCeluGrad, celu_grad<DeviceMath>(d, x, a));
    OFSDP_CASE(Pointwise::kSeluGrad, x > T(0) ? d * b : d * b * a * std::exp(x));
    OFSDP_CASE(Pointwise::kHardSigmoidGrad, hard_sigmoid_grad(d, x, a, b));
    OFSDP_CASE(Pointwise::kHardSwishGrad, hard_swish_grad(d, x));
    OFSDP_CASE(Pointwise::kLeakyReluGrad, leaky_relu_grad(d, x, a));
    OFSDP_CASE(Pointwise::kMishGrad, d * mish_slope<DeviceMath>(x));
    OFSDP_CASE(Pointwise::kThresholdedReluGrad, thresholded_relu_grad(d, x, a));
    OFSDP_CASE(Pointwise::kShrinkGrad, shrink_grad(d, x, a));
    OFSDP_CASE(Pointwise::kClipGrad, clip_grad(d, x, a, b));
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
    OFSDP_CASE(Pointwise::kMod, mod_of<DeviceMath>(x, y, a != T(0)));
    OFSDP_CASE(Pointwise::kBiasGelu, gelu_of<DeviceMath>(x + y));
    OFSDP_CASE(Pointwise::kFastGelu, gelu_tanh_of<DeviceMath>(x + y));
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
