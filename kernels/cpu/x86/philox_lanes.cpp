// Philox, the generator of kernels/core/philox.h, for AVX-512 and AVX2. `bits` must be aligned to
// 64 bytes; philox.h says in which order it is filled.
#include <immintrin.h>

#include "kernels/core/philox.h"

namespace ofsdp::kernels {
namespace {

// A vector holds one counter word of 16 blocks (AVX-512) or 8 (AVX2). The processor multiplies only
// even 32-bit lanes, so odd lanes are shifted to even places, multiplied, and blended with the
// others.

struct Product512 {
  __m512i high, low;
};

__attribute__((target("avx512f"), always_inline)) inline Product512 multiply_512(__m512i x,
                                                                                 __m512i m) {
  const __m512i even = _mm512_mul_epu32(x, m);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  return {_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd),
          _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
}

__attribute__((target("avx512f"))) void fill_avx512(PhiloxKey key, uint64_t sample,
                                                    int64_t first_group, int64_t groups,
                                                    uint32_t* bits) {
  const __m512i m0 = _mm512_set1_epi32(static_cast<int>(kPhiloxMultiplier0));
  const __m512i m1 = _mm512_set1_epi32(static_cast<int>(kPhiloxMultiplier1));
  __m512i k0[kPhiloxRounds], k1[kPhiloxRounds];
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    k0[round] = _mm512_set1_epi32(static_cast<int>(key[0] + kPhiloxWeyl0 * round));
    k1[round] = _mm512_set1_epi32(static_cast<int>(key[1] + kPhiloxWeyl1 * round));
  }
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t group = 0; group < groups; ++group, bits += kPhiloxGroup) {
    const auto block =
        static_cast<uint64_t>(first_group + group) * 16;  // adding lanes never carries
    __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(block)), lanes);
    __m512i c1 = _mm512_set1_epi32(static_cast<int>(block >> 32));
    __m512i c2 = _mm512_set1_epi32(static_cast<int>(sample));
    __m512i c3 = _mm512_set1_epi32(static_cast<int>(sample >> 32));
    for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
      const Product512 p0 = multiply_512(c0, m0);
      const Product512 p1 = multiply_512(c2, m1);
      c0 = _mm512_xor_si512(_mm512_xor_si512(p1.high, c1), k0[round]);
      c1 = p1.low;
      c2 = _mm512_xor_si512(_mm512_xor_si512(p0.high, c3), k1[round]);
      c3 = p0.low;
    }
    _mm512_store_si512(bits, c0);
    _mm512_store_si512(bits + 16, c1);
    _mm512_store_si512(bits + 32, c2);
    _mm512_store_si512(bits + 48, c3);
  }
}

struct Product256 {
  __m256i high, low;
};

__attribute__((target("avx2"), always_inline)) inline Product256 multiply_256(__m256i x,
                                                                              __m256i m) {
  const __m256i even = _mm256_mul_epu32(x, m);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
  return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA),
          _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
}

__attribute__((target("avx2"))) void fill_avx2(PhiloxKey key, uint64_t sample, int64_t first_group,
                                               int64_t groups, uint32_t* bits) {
  const __m256i m0 = _mm256_set1_epi32(static_cast<int>(kPhiloxMultiplier0));
  const __m256i m1 = _mm256_set1_epi32(static_cast<int>(kPhiloxMultiplier1));
  __m256i k0[kPhiloxRounds], k1[kPhiloxRounds];
  for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
    k0[round] = _mm256_set1_epi32(static_cast<int>(key[0] + kPhiloxWeyl0 * round));
    k1[round] = _mm256_set1_epi32(static_cast<int>(key[1] + kPhiloxWeyl1 * round));
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t half = 0; half < 2 * groups; ++half) {
    const auto block = static_cast<uint64_t>(first_group * 2 + half) * 8;
    __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(block)), lanes);
    __m256i c1 = _mm256_set1_epi32(static_cast<int>(block >> 32));
    __m256i c2 = _mm256_set1_epi32(static_cast<int>(sample));
    __m256i c3 = _mm256_set1_epi32(static_cast<int>(sample >> 32));
    for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
      const Product256 p0 = multiply_256(c0, m0);
      const Product256 p1 = multiply_256(c2, m1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(p1.high, c1), k0[round]);
      c1 = p1.low;
      c2 = _mm256_xor_si256(_mm256_xor_si256(p0.high, c3), k1[round]);
      c3 = p0.low;
    }
    auto* to = reinterpret_cast<__m256i*>(bits + half / 2 * kPhiloxGroup + half % 2 * 8);
    _mm256_store_si256(to, c0);
    _mm256_store_si256(to + 2, c1);
    _mm256_store_si256(to + 4, c2);
    _mm256_store_si256(to + 6, c3);
  }
}

}  // namespace

std::vector<PhiloxFill> vector_philox_fills() {
  std::vector<PhiloxFill> fills;
  if (__builtin_cpu_supports("avx512f")) fills.push_back(fill_avx512);
  if (__builtin_cpu_supports("avx2")) fills.push_back(fill_avx2);
  return fills;
}

}  // namespace ofsdp::kernels
