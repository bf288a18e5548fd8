// The formulas of operations.inc for one element; T is float or double.
#pragma once

#include <cmath>

#include "kernels/cuda/device/quick.cuh"
#include "kernels/cuda/pointwise/formulas.cuh"
#include "kernels/cuda/pointwise/pointwise.h"

namespace ofsdp::kernels::cuda {

// Variances use exponent 2, norms 0.5.
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

// Fast formulas of frequent operations in transformers, for results that are rounded to 16 bits.
// Returns false if kOp has none.
template <Pointwise kOp>
__device__ inline bool quick_of(float d, float x, float a, float& y) {
  using M = QuickMath;
  using P = Pointwise;
  const Quick v(x);
  const auto put = [&](Quick found) {
    y = found.v;
    return true;
  };
  if constexpr (kOp == P::kGelu) return put(Quick(x * QuickNormal(x).below));
  if constexpr (kOp == P::kGeluTanh) return put(gelu_tanh_of<M>(v));
  if constexpr (kOp == P::kSwish) return put(swish_of<M>(v, Quick(a)));
  if constexpr (kOp == P::kSigmoid) return put(sigmoid_of<M>(v));
  if constexpr (kOp == P::kGeluGrad) {
    const QuickNormal normal(x);
    return put(Quick(d * fmaf(x, normal.density, normal.below)));
  }
  if constexpr (kOp == P::kGeluTanhGrad) return put(Quick(d) * gelu_tanh_slope<M>(v));
  if constexpr (kOp == P::kSwishGrad) return put(swish_grad<M>(Quick(d), v, Quick(a)));
  return false;
}

// The remainder with the sign of y, or of x if `truncated`; 0 if y is 0.
template <typename T>
__host__ __device__ inline T integer_rest(T x, T y, bool truncated) {
  if (y == 0 || y == -1) return 0;
  const T rest = x % y;
  return truncated || rest == 0 || (rest < 0) == (y < 0) ? rest : rest + y;
}
// The caller rounds bounds to integers; infinity means no bound.
template <typename T>
__host__ __device__ inline T integer_clip(T x, double low, double high) {
  const T raised = static_cast<double>(x) < low ? static_cast<T>(low) : x;
  return static_cast<double>(raised) > high ? static_cast<T>(high) : raised;
}

// Two's complement: overflow wraps.
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
    case Pointwise::kIsInf:  // only infinity minus itself is NaN
      return x == x && x - x != T(0) && (x > T(0) ? numbers.a != 0 : numbers.b != 0);
    default:
      return x != x;
  }
}

}  // namespace ofsdp::kernels::cuda
