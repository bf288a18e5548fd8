// Float32 functions that gcc vectorises: multiply-add, exp and log, pow, sine and relatives.
//
// a * b + c in the two ways that processors have, as a type for which loops compile.
//
//   SeparateMultiplyAdd   rounds product and sum; every processor has it
//   FusedMultiplyAdd      rounds once, in one instruction; processors with AVX2 and aarch64 have
//                         it, on others it calls the C library
//
// The type decides, not -ffp-contract: a compiler may contract the vector loop and not the
// remaining elements, and an element's bits would depend on its position ([Note: the same bits
// everywhere] in cmake/targets.cmake). fastest_version (parallel.h) takes the one that the
// processor has; use FusedMultiplyAdd only in these loops.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace ofsdp::kernels {

struct SeparateMultiplyAdd {
  template <typename T>
  [[gnu::always_inline]] static inline T of(T a, T b, T c) {
    return a * b + c;
  }
};

struct FusedMultiplyAdd {
  [[gnu::always_inline]] static inline float of(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
  }
  [[gnu::always_inline]] static inline double of(double a, double b, double c) {
    return __builtin_fma(a, b, c);
  }
};

// exp, log and relatives: straight polynomials without branches or calls, the same bits in a vector
// and alone. Errors: about 1 unit in the last place for exp and log, 2 for tanh and log1p, 3 for
// expm1, 5 for erf. The polynomials come from Cephes (https://www.netlib.org/cephes/) except exp
// (minimax, 0.05 units) and erf (Eigen). Infinities, zeros and subnormals are right, NaN stays NaN;
// tests/ops/vector_math_test.cpp measures all that.
//
// A is SeparateMultiplyAdd or FusedMultiplyAdd.
//
// vector_exp: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by a polynomial, times 2^n in two factors, so
// that subnormal results and overflow to infinity are right.
//
// Call from an OFSDP_MULTIARCH function or a fastest_version loop.

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

// e^x for x up to 88, and 0 below -87, where results become subnormal: enough for softmax, with a
// third fewer instructions.
template <typename A = SeparateMultiplyAdd>
[[gnu::always_inline]] inline float vector_exp_flushed(float x) {
  const SplitExp e = split_exp<A>(x);
  const float power = std::bit_cast<float>((e.n + 127u) << 23);
  return x < -87.0f ? 0.0f : A::of(e.slope, e.r, 1.0f) * power;
}

// 1 - 2 / (e^2|x| + 1); near 0, where that would cancel, the odd polynomial in Cephes' tanhf.
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
  const bool tiny = x < 1.17549435e-38f;  // subnormal, or outside the domain
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

// ln(1 + x), with the rounding error of 1 + x added again.
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

// Gelu's derivative: 1/2 plus x times a minimax polynomial in x^2, which is mapped to -1..1 for
// precision. It needs neither exponential nor division, unlike kernels/formulas/activation.h, and
// the error is no larger: 2.2e-7. Beyond 6 it is 1, beyond -6 it is 0, within 2e-8.
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

// x^e: 2^(e log2 |x|) in double, because the exponent magnifies the logarithm's error; about 1 unit
// in the last place. Special cases follow C's pow (IEEE 754). Call from an OFSDP_MULTIARCH
// function.

// Returns log2 x for x > 0: x = 2^k m, m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m +
// 1)).
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

// Trigonometric and hyperbolic functions: Cephes polynomials, errors about 2 units in the last
// place. Call from an OFSDP_MULTIARCH function.
//
// sin, cos and tan reduce x to a quarter turn in double, pi / 2 in two parts (as FreeBSD's sinf),
// which is exact enough up to kMaxTurned; beyond it, where nobody computes on purpose, use the C
// library.

inline constexpr float kMaxTurned = 2e8f;

struct QuarterTurn {
  float rest;        // in -pi/4 .. pi/4
  int32_t quadrant;  // two lowest bits
};

[[gnu::always_inline]] inline QuarterTurn quarter_turn(float x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double v = static_cast<double>(x);
  const double shifted = v * 0.63661977236758134308 + kRound;
  const double n = shifted - kRound;
  const double rest = v - n * 1.57079631090164184570 - n * 1.58932547735281966916e-08;
  return {static_cast<float>(rest), static_cast<int32_t>(std::bit_cast<int64_t>(shifted))};
}

[[gnu::always_inline]] inline float sine_near_0(float x, float z) {
  const float p = (-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f;
  return p * z * x + x;
}

[[gnu::always_inline]] inline float cosine_near_0(float z) {
  float p = 2.443315711809948e-5f * z - 1.388731625493765e-3f;
  p = p * z + 4.166664568298827e-2f;
  return p * z * z - 0.5f * z + 1.0f;
}

[[gnu::always_inline]] inline float turned(QuarterTurn turn, int32_t quadrant) {
  const float z = turn.rest * turn.rest;
  const float y = (quadrant & 1) != 0 ? cosine_near_0(z) : sine_near_0(turn.rest, z);
  return (quadrant & 2) != 0 ? -y : y;
}

[[gnu::always_inline]] inline float vector_sin(float x) {
  const QuarterTurn turn = quarter_turn(x);
  return turned(turn, turn.quadrant);
}

[[gnu::always_inline]] inline float vector_cos(float x) {
  const QuarterTurn turn = quarter_turn(x);
  return turned(turn, turn.quadrant + 1);
}

[[gnu::always_inline]] inline float vector_tan(float x) {
  const auto [rest, quadrant] = quarter_turn(x);
  const float z = rest * rest;
  const float p =
      polynomial<SeparateMultiplyAdd>(z, 9.38540185543e-3f, 3.11992232697e-3f, 2.44301354525e-2f,
                                      5.34112807005e-2f, 1.33387994085e-1f, 3.33331568548e-1f);
  const float y = p * z * rest + rest;
  return (quadrant & 1) != 0 ? -1.0f / y : y;
}

// asin x with z = x^2 <= 1/4
[[gnu::always_inline]] inline float arc_sine_near_0(float x, float z) {
  const float p = polynomial<SeparateMultiplyAdd>(
      z, 4.2163199048e-2f, 2.4181311049e-2f, 4.5470025998e-2f, 7.4953002686e-2f, 1.6666752422e-1f);
  return p * z * x + x;
}

// Beyond 1/2: asin x = pi/2 - 2 asin(sqrt((1 - x) / 2)).
[[gnu::always_inline]] inline float vector_asin(float x) {
  const float size = __builtin_fabsf(x);
  const bool far = size > 0.5f;
  const float z = far ? 0.5f * (1.0f - size) : size * size;
  const float y = arc_sine_near_0(far ? __builtin_sqrtf(z) : size, z);
  return __builtin_copysignf(far ? 1.57079632679489662f - (y + y) : y, x);
}

[[gnu::always_inline]] inline float vector_acos(float x) {
  const float size = __builtin_fabsf(x);
  const bool far = size > 0.5f;
  const float z = far ? 0.5f * (1.0f - size) : size * size;
  const float y = arc_sine_near_0(far ? __builtin_sqrtf(z) : x, z);
  const float end = x < 0.0f ? 3.14159265358979324f - (y + y) : y + y;
  return far ? end : 1.57079632679489662f - y;
}

// atan a = pi/2 - atan(1/a) beyond 2.4, pi/4 + atan((a - 1) / (a + 1)) beyond 0.4.
[[gnu::always_inline]] inline float vector_atan(float x) {
  const float size = __builtin_fabsf(x);
  const bool far = size > 2.414213562373095f;
  const bool middle = size > 0.4142135623730950f;
  const float top = far ? -1.0f : (middle ? size - 1.0f : size);
  const float bottom = far ? size : (middle ? size + 1.0f : 1.0f);
  const float from = far ? 1.57079632679489662f : (middle ? 0.785398163397448310f : 0.0f);
  const float v = top / bottom;
  const float z = v * v;
  const float p = polynomial<SeparateMultiplyAdd>(z, 8.05374449538e-2f, -1.38776856032e-1f,
                                                  1.99777106478e-1f, -3.33329491539e-1f);
  return __builtin_copysignf(from + (p * z * v + v), x);
}

// e^|x| as e^(|x|/2) squared, which does not overflow before sinh and cosh do.
[[gnu::always_inline]] inline float vector_sinh(float x) {
  const float size = __builtin_fabsf(x);
  const float root = vector_exp(0.5f * size);
  const float far = 0.5f * root * root - 0.5f / (root * root);
  const float z = x * x;
  const float p = (2.03721912945e-4f * z + 8.33028376239e-3f) * z + 1.66667160211e-1f;
  return size < 1.0f ? p * z * x + x : __builtin_copysignf(far, x);
}

[[gnu::always_inline]] inline float vector_cosh(float x) {
  const float root = vector_exp(0.5f * __builtin_fabsf(x));
  return 0.5f * root * root + 0.5f / (root * root);
}

// If squares would overflow, ln(2 |x|).
[[gnu::always_inline]] inline float vector_asinh(float x) {
  const float size = __builtin_fabsf(x);
  const float square = size * size;
  const float near = vector_log1p(size + square / (1.0f + __builtin_sqrtf(square + 1.0f)));
  const float far = vector_log(size) + 0.693147180559945f;
  return __builtin_copysignf(size > 1e8f ? far : near, x);
}

[[gnu::always_inline]] inline float vector_acosh(float x) {
  const float over = x - 1.0f;
  const float near = vector_log1p(over + __builtin_sqrtf(over * (over + 2.0f)));
  const float far = vector_log(x) + 0.693147180559945f;
  const float y = x > 1e8f ? far : near;
  return x < 1.0f ? std::numeric_limits<float>::quiet_NaN() : y;
}

[[gnu::always_inline]] inline float vector_atanh(float x) {
  const float size = __builtin_fabsf(x);
  return __builtin_copysignf(0.5f * vector_log1p(2.0f * size / (1.0f - size)), x);
}

}  // namespace ofsdp::kernels
