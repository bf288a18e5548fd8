// exp and tanh in float32 that gcc vectorises: straight polynomials without branches or calls, the
// same bits in a vector and alone. Errors: about 1 unit in the last place for exp, 2 for tanh.
//
// vector_exp: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by the polynomial of Cephes' expf, times 2^n in
// two halves, so that subnormal results and overflow to infinity come out right. NaN stays NaN.
//
// Threads: any. Call from an OFSDP_MULTIARCH function.
#pragma once

#include <bit>
#include <cstdint>

namespace ofsdp {

[[gnu::always_inline]] inline float vector_exp(float x) {
  x = x > 89.0f ? 89.0f : x;             // e^89 is infinity already
  x = x < -104.0f ? -104.0f : x;         // e^-104 is 0
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * r * r + r + 1.0f;
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return e * first * second;
}

// 1 - 2 / (e^2|x| + 1), and near 0, where that would cancel, the odd polynomial of Cephes' tanhf.
[[gnu::always_inline]] inline float vector_tanh(float x) {
  const float size = x < 0.0f ? -x : x;
  const float far = 1.0f - 2.0f / (vector_exp(size + size) + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

}  // namespace ofsdp
