// exp, log and their kin in float32 that gcc vectorises: straight polynomials without branches or
// calls, the same bits in a vector and alone. Errors: about 1 unit in the last place for exp and
// log, 2 for tanh and log1p, 3 for expm1, 5 for erf. The polynomials are those of Cephes
// (https://www.netlib.org/cephes/) but for exp's, a minimax one of 0.05 units, and erf's, Eigen's.
// Infinities, zeros and subnormal numbers come out right, NaN stays NaN;
// tests/ops/vector_math_test.cpp measures all of it.
//
// A is how products are added, of kernels/cpu/multiply_add.h.
//
// vector_exp: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by a polynomial, times 2^n in two factors, so
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

// x = n ln 2 + r with |r| <= ln 2 / 2 and e^r = 1 + slope r; n is in the low bits, and 2^n has the
// bits (n + 127) << 23.
struct SplitExp {
  float r, slope;
  uint32_t n;
};
template <typename A>
[[gnu::always_inline]] inline SplitExp split_exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const float shifted = A::of(x, 1.44269504088896341f, kRound);
  const float n = shifted - kRound;
  const float r = A::of(n, 2.12194440e-4f, A::of(n, -0.693359375f, x));
  const float slope = polynomial<A>(r, 1.3814599e-3f, 8.368717e-3f, 4.166839e-2f, 1.6666521e-1f,
                                    4.9999994e-1f, 1.0f);
  return {r, slope, std::bit_cast<uint32_t>(shifted)};
}

template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_exp(float x) {
  float v = x > 89.0f ? 89.0f : x;  // e^89 is infinity already
  v = v < -104.0f ? -104.0f : v;    // e^-104 is 0
  const SplitExp e = split_exp<A>(v);
  const bool below = x < 0.0f;
  const uint32_t bias = (below ? 127u + 64u : 127u - 64u) << 23;
  const float power = std::bit_cast<float>((e.n << 23) + bias);
  return A::of(e.slope, e.r, 1.0f) * power * (below ? 0x1p-64f : 0x1p64f);
}

// e^x of an x up to 88, and 0 below -87, where results become subnormal: what softmax asks for, in
// two thirds of the instructions.
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_exp_flushed(float x) {
  const SplitExp e = split_exp<A>(x);
  const float power = std::bit_cast<float>((e.n + 127u) << 23);
  return x < -87.0f ? 0.0f : A::of(e.slope, e.r, 1.0f) * power;
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
  const SplitExp e = split_exp<A>(v);
  const float power = std::bit_cast<float>((e.n + 127u) << 23);
  const float y = A::of(e.slope * e.r, power, power - 1.0f);
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

// The derivative of Gelu: 1/2 and an odd rest, x times a minimax polynomial of x^2, which is mapped
// to -1..1 for its digits' sake. It has neither the exponential nor the division of the formula in
// kernels/formulas/gelu.h, and no larger error: 2.2e-7. Beyond 6 it is 1, beyond -6 it is 0
// within 2e-8.
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_gelu_slope(float x) {
  float v = x > 6.0f ? 6.0f : x;
  v = v < -6.0f ? -6.0f : v;
  const float w = A::of(v * v, 1.0f / 18.0f, -1.0f);
  const float p =
      polynomial<A>(w, 2.7715578e-3f, -6.890418e-3f, 1.8863375e-3f, 1.6302057e-3f, 1.6030937e-2f,
                    -3.2967467e-2f, 3.140514e-2f, -3.6337636e-2f, 5.444336e-2f, -6.575417e-2f,
                    6.6866055e-2f, -6.431142e-2f, 5.8694568e-2f, -5.093632e-2f, 4.455547e-2f,
                    -4.2365536e-2f, 4.6057716e-2f, -5.934281e-2f, 1.17897764e-1f);
  return A::of(v, p, 0.5f);
}

}  // namespace ofsdp::kernels
