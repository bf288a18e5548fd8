// Trigonometric and hyperbolic functions in float32 that gcc vectorises, as kernels/cpu/
// vector_math.h: polynomials of Cephes, errors of about 2 units in the last place.
//
// sin, cos and tan reduce x to a quarter turn in double, pi / 2 in two parts (as FreeBSD's sinf),
// which is exact enough up to kMostTurned; beyond it, where nobody computes on purpose, use the
// C library.
//
// Threads: any. Call from an OFSDP_MULTIARCH function.
#pragma once

#include "kernels/cpu/vector_math.h"

namespace ofsdp::kernels {

inline constexpr float kMostTurned = 2e8f;

struct QuarterTurn {
  float rest;        // in -pi/4 .. pi/4
  int32_t quadrant;  // its two lowest bits
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

// asin of x, where z = x^2 <= 1/4
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

// e^|x| as the square of e^(|x|/2), which does not overflow before sinh and cosh do.
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

// Far out, where squares would overflow, ln(2 |x|).
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
