// Conversions for AVX-512 and AVX2.
#include "kernels/cpu/stored_floats.h"

#include <immintrin.h>

namespace ofsdp::kernels {
namespace {

constexpr int kSubnormal = 0x20;  // for fpclass

// The processor's own rounding, if it has one: parameters come from memory, and fewer instructions
// between two reads keep more reads under way. It takes subnormals for 0, so the plain loop
// converts vectors that hold one: every processor gives the same bits.
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bf16"))) void narrow_span_bf16(
    const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<BFloat16*>(dst);
  int64_t i = begin;
  for (; i + 32 <= end; i += 32) {
    const __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
    if ((_mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal)) != 0) {
      plain_narrow_bf16(src, dst, i, i + 32);
      continue;
    }
    _mm512_storeu_si512(y + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  plain_narrow_bf16(src, dst, i, end);
}

// The formula in stored<BFloat16>, eight at a time: the loop's unsigned comparison and packing cost
// the compiler three times as many instructions.
__attribute__((target("avx2"))) __m256i rounded_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, nan, is_nan);
}

__attribute__((target("avx2"))) void narrow_span_bf16_avx2(const void* src, void* dst,
                                                           int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<BFloat16*>(dst);
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    const __m256i low = rounded_bf16(_mm256_loadu_ps(x + i));
    const __m256i high = rounded_bf16(_mm256_loadu_ps(x + i + 8));
    const __m256i packed = _mm256_packus_epi32(low, high);  // each half of a register by itself
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i),
                        _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
  }
  plain_narrow_bf16(src, dst, i, end);
}

// float16 by the processor's own instructions. They keep a NaN's payload and the formula does not,
// so the formula converts vectors with a NaN.
__attribute__((target("avx2,f16c"))) bool has_nan(__m256 x) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0;
}

__attribute__((target("avx2,f16c"))) void narrow_span_half(const void* src, void* dst,
                                                           int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<Half*>(dst);
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256 wide = _mm256_loadu_ps(x + i);
    if (has_nan(wide)) {
      plain_narrow_half(src, dst, i, i + 8);
      continue;
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT));
  }
  plain_narrow_half(src, dst, i, end);
}

__attribute__((target("avx2,f16c"))) void widen_span_half(const void* src, void* dst, int64_t begin,
                                                          int64_t end) {
  const auto* x = static_cast<const Half*>(src);
  auto* y = static_cast<float*>(dst);
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
    if (has_nan(wide)) {
      plain_widen_half(src, dst, i, i + 8);
      continue;
    }
    _mm256_storeu_ps(y + i, wide);
  }
  plain_widen_half(src, dst, i, end);
}

bool converts_half() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }

}  // namespace

WidthSpan own_narrow_half() { return converts_half() ? narrow_span_half : nullptr; }

WidthSpan own_widen_half() { return converts_half() ? widen_span_half : nullptr; }

WidthSpan own_narrow_bf16() {
  const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq");
  if (has) return narrow_span_bf16;
  return __builtin_cpu_supports("avx2") ? narrow_span_bf16_avx2 : nullptr;
}

}  // namespace ofsdp::kernels
