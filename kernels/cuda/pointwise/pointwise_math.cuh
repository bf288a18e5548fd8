// The pointwise operations for one element. unary_of, binary_of and gradient_of expand the formulas
// of operations.inc, a table with one row per operation (UNARY, BINARY, GRADIENT), for T = float or
// double; the cases of integer_of and test_of are written here. pointwise.cu's kernels call them,
// once has_kernel has accepted operation and dtype: an operation without a case returns its first
// operand.
//
// x and y: the operands. d: the result's gradient. a and b: the operator's attributes, such as
// alpha (PointwiseNumbers in pointwise.h lists them). Nothing fails here; NaN and infinity pass
// through.
#pragma once

#include <cmath>

#include "kernels/cuda/device/quick.cuh"
#include "kernels/cuda/pointwise/formulas.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {

// Exponents 2 (variances) and 0.5 (norms) are frequent and faster without pow. The root of -0 is
// -0, where pow gives +0.
template <typename T>
__host__ __device__ inline T pow_of(T x, T e) {
  if (e == T(2)) return x * x;
  if (e == T(0.5) && x >= T(0)) return std::sqrt(x);
  return std::pow(x, e);
}

template <typename T>
__host__ __device__ inline T unary_of(Pointwise op, T x, T a, T b) {
  using M = DeviceMath;
  switch (op) {
#define UNARY(name, ...) OFSDP_CASE(Pointwise::k##name, __VA_ARGS__);
#include "kernels/cuda/pointwise/operations.inc"
    default:
      return x;
  }
}

// x: the forward operand, or the result for Relu, Sigmoid and Tanh.
template <typename T>
__host__ __device__ inline T gradient_of(Pointwise op, T d, T x, T a, T b) {
  using M = DeviceMath;
  switch (op) {
#define GRADIENT(name, ...) OFSDP_CASE(Pointwise::k##name, __VA_ARGS__);
#include "kernels/cuda/pointwise/operations.inc"
    default:
      return d;
  }
}

// Includes the gradients, which are binary operations too: then x is the result's gradient and y
// what gradient_of calls x.
template <typename T>
__host__ __device__ inline T binary_of(Pointwise op, T x, T y, T a, T b) {
  using M = DeviceMath;
  switch (op) {
#define BINARY(name, ...) OFSDP_CASE(Pointwise::k##name, __VA_ARGS__);
#include "kernels/cuda/pointwise/operations.inc"
    default:
      return gradient_of(op, x, y, a, b);
  }
}

// Fast formulas of operations that are frequent in transformers, for results that are rounded to 16
// bits (quick.cuh). Stores the result in `y`. Returns false, and leaves `y`, if kOp has none. `d`:
// the gradient if kOp is one; else ignored.
template <Pointwise kOp>
__device__ inline bool quick_of(float d, float x, float a, float& y) {
  using M = QuickMath;
  using P = Pointwise;
  const Quick v(x);
  const auto set = [&](Quick value) {
    y = value.v;
    return true;
  };
  if constexpr (kOp == P::kGelu) return set(Quick(x * QuickNormal(x).below));
  if constexpr (kOp == P::kGeluTanh) return set(gelu_tanh_of<M>(v));
  if constexpr (kOp == P::kSwish) return set(swish_of<M>(v, Quick(a)));
  if constexpr (kOp == P::kSigmoid) return set(sigmoid_of<M>(v));
  if constexpr (kOp == P::kGeluGrad) {
    const QuickNormal normal(x);
    return set(Quick(d * fmaf(x, normal.density, normal.below)));
  }
  if constexpr (kOp == P::kGeluTanhGrad) return set(Quick(d) * gelu_tanh_slope<M>(v));
  if constexpr (kOp == P::kSwishGrad) return set(swish_grad<M>(Quick(d), v, Quick(a)));
  return false;
}

// Returns the remainder with the sign of y, or of x if `truncated` (Mod's fmod). Returns 0 if y is
// 0, and if y is -1, since the smallest x % -1 overflows.
template <typename T>
__host__ __device__ inline T integer_remainder(T x, T y, bool truncated) {
  if (y == 0 || y == -1) return 0;
  const T remainder = x % y;
  return truncated || remainder == 0 || (remainder < 0) == (y < 0) ? remainder : remainder + y;
}
// Bounds are integers, as the caller has rounded them; infinity means no bound. Comparisons are in
// double, so int64 values beyond 2^53 are rounded for them.
template <typename T>
__host__ __device__ inline T integer_clip(T x, double low, double high) {
  const T raised = static_cast<double>(x) < low ? static_cast<T>(low) : x;
  return static_cast<double>(raised) > high ? static_cast<T>(high) : raised;
}

// T is int32_t or int64_t; overflow wraps. Division by 0 gives 0; the kernel reports it. numbers.a:
// Mod truncates (fmod); BitShift shifts left, else right, with the sign.
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
    OFSDP_CASE(Pointwise::kMod, integer_remainder(x, y, numbers.a != 0));
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

// Predicates. IsInf: numbers.a and numbers.b say whether +infinity and -infinity count.
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
    case Pointwise::kIsInf:  // not a NaN, but x - x is one: an infinity
      return x == x && x - x != T(0) && (x > T(0) ? numbers.a != 0 : numbers.b != 0);
    default:  // kIsNaN
      return x != x;
  }
}

}  // namespace ofsdp::kernels::cuda
