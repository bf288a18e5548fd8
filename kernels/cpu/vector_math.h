// exp, log and their kin in float32 that gcc vectorises: straight polynomials without branches or
// calls, the same bits in a vector and alone. Errors: about 1 unit in the last place for exp and
// log, 2 for tanh and log1p, 3 for expm1, 5 for erf. The polynomials are those of Cephes
// (https://www.netlib.org/cephes/), erf's is Eigen's. Infinities, zeros and subnormal numbers come
// out right, NaN stays NaN; tests/ops/vector_math_test.cpp measures all of it.
//
// A is how products are added, of kernels/cpu/multiply_add.h.
//
// vector_exp: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by a polynomial, times 2^n in two halves, so
// that subnormal results and overflow to infinity come out right.
//
// Threads: any. Call from an OFSDP_MULTIARCH function or a loop of fastest_version.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cpu/multiply_add.h"

namespace ofsdp::kernels {

// c0 x^n + c1 x^(n - 1) + ... + cn by Horner's rule.
template <typename A, typename T, typename... C>
[[gnu::always_inline]] inline T polynomial(T x, T c0, C... c) {
  ((c0 = A::of(c0, x, static_cast<T>(c))), ...);
  return c0;
}

template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_exp(float x) {
  x = x > 89.0f ? 89.0f : x;             // e^89 is infinity already
  x = x < -104.0f ? -104.0f : x;         // e^-104 is 0
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const float shifted = A::of(x, 1.44269504088896341f, kRound);
  const float n = shifted - kRound;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float r = A::of(n, 2.12194440e-4f, A::of(n, -0.693359375f, x));
  const float p = polynomial<A>(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  const float e = A::of(p * r, r, r) + 1.0f;
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return e * first * second;
}

// 1 - 2 / (e^2|x| + 1), and near 0, where that would cancel, the odd polynomial of Cephes' tanhf.
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_tanh(float x) {
  const float size = x < 0.0f ? -x : x;
  const float far = 1.0f - 2.0f / (vector_exp<A>(size + size) + 1.0f);
  const float z = x * x;
  const float p = polynomial<A>(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                1.33314422036e-1f, -3.33332819422e-1f);
  const float near = A::of(p * z, x, x);
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

// x = 2^k m with m in [sqrt(1/2), sqrt(2)); ln x = k ln 2 + ln(1 + (m - 1)).
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool tiny = x < 1.17549435e-38f;  // subnormal, or not in the domain at all
  const auto shifted =
      static_cast<int32_t>(std::bit_cast<uint32_t>(tiny ? x * 8388608.0f : x) + 0x4afb0du);
  const float k = static_cast<float>((shifted >> 23) - (tiny ? 127 + 23 : 127));
  const float z = std::bit_cast<float>((shifted & 0x7fffff) + 0x3f3504f3) - 1.0f;
  const float p = polynomial<A>(z, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
                                -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                                2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
  const float square = z * z;
  const float tail = A::of(-0.5f, square, A::of(z * square, p, k * -2.12194440e-4f));
  float y = A::of(k, 0.693359375f, z + tail);
  y = x < kInfinity ? y : x;  // infinity and NaN
  y = x == 0.0f ? -kInfinity : y;
  return x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
}

// ln(1 + x): what rounding 1 + x lost is added again.
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_log1p(float x) {
  const float u = 1.0f + x;
  const float lost = x - (u - 1.0f);
  return vector_log<A>(u) + (u > 0.0f && u < 1e9f ? lost / u : 0.0f);
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1)
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_expm1(float x) {
  float v = x > 80.0f ? 80.0f : x;
  v = v < -30.0f ? -30.0f : v;
  constexpr float kRound = 12582912.0f;
  const float shifted = A::of(v, 1.44269504088896341f, kRound);
  const float n = shifted - kRound;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float r = A::of(n, 2.12194440e-4f, A::of(n, -0.693359375f, v));
  const float p = polynomial<A>(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  const float power = std::bit_cast<float>((exponent + 127) << 23);
  const float y = A::of(A::of(p * r, r, r), power, power - 1.0f);
  return x > 80.0f ? vector_exp<A>(x) : y;
}

// x P(x^2) / Q(x^2); beyond +-3.83 erf is +-1 in float32.
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_erf(float x) {
  float v = x > 3.832506856900711f ? 3.832506856900711f : x;
  v = v < -3.832506856900711f ? -3.832506856900711f : v;
  const float z = v * v;
  const float p = polynomial<A>(
      z, 2.123732201653183437883853912353516e-06f, 2.861979592125862836837768554687500e-04f,
      3.658048342913389205932617187500000e-03f, 5.243302136659622192382812500000000e-02f,
      1.874160766601562500000000000000000e-01f, 1.128379106521606445312500000000000e+00f);
  const float q =
      polynomial<A>(z, 3.89185734093189239501953125000e-05f, 1.14329601638019084930419921875e-03f,
                    1.47520881146192550659179687500e-02f, 1.12945675849914550781250000000e-01f,
                    4.99425798654556274414062500000e-01f, 1.0f);
  return v * (p / q);
}

}  // namespace ofsdp::kernels
