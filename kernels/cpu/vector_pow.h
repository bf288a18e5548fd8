// x^e in float32 that gcc vectorises: 2^(e log2 |x|) in double, which leaves room for the error of
// the logarithm that the exponent magnifies; about 1 unit in the last place. Special cases are
// those of C's pow (IEEE 754).
//
// Threads: any. Call from an OFSDP_MULTIARCH function.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cpu/vector_math.h"

namespace ofsdp::kernels {

// log2 of x > 0: x = 2^k m, m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)).
[[gnu::always_inline]] inline double log2_in_double(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const auto shifted =
      static_cast<int32_t>(std::bit_cast<uint32_t>(tiny ? x * 8388608.0f : x) + 0x4afb0du);
  const int32_t k = (shifted >> 23) - (tiny ? 127 + 23 : 127);
  const double m = static_cast<double>(std::bit_cast<float>((shifted & 0x7fffff) + 0x3f3504f3));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  const double p = polynomial<SeparateMultiplyAdd>(z, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                                                   1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  return static_cast<double>(k) + p * s * 2.88539008177792681472;
}

// 2^t, rounded once unless the result is subnormal.
[[gnu::always_inline]] inline float exp2_from_double(double t) {
  t = t > 160.0 ? 160.0 : t;
  t = t < -160.0 ? -160.0 : t;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = t + kRound;
  const double r = (t - (shifted - kRound)) * 0.69314718055994530942;
  const double p =
      polynomial<SeparateMultiplyAdd>(r, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                      1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
  const auto n = static_cast<int32_t>(std::bit_cast<int64_t>(shifted));
  const int32_t half = n >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((n - half + 127) << 23);
  return static_cast<float>(p) * first * second;
}

[[gnu::always_inline]] inline float vector_pow(float x, float e) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float size = __builtin_fabsf(x);
  double log = log2_in_double(size);
  log = size < kInfinity ? log : static_cast<double>(size);  // infinity and NaN
  log = size == 0.0f ? -static_cast<double>(kInfinity) : log;
  float y = exp2_from_double(static_cast<double>(e) * log);
  const bool whole = __builtin_floorf(e) == e;
  const bool odd = whole && __builtin_floorf(0.5f * e) != 0.5f * e;
  y = x < 0.0f && x > -kInfinity && !whole ? std::numeric_limits<float>::quiet_NaN() : y;
  y = odd ? __builtin_copysignf(y, x) : y;
  const bool one = e == 0.0f || x == 1.0f || (x == -1.0f && __builtin_fabsf(e) == kInfinity);
  return one ? 1.0f : y;
}

}  // namespace ofsdp::kernels
