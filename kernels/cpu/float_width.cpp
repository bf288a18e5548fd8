#include "kernels/cpu/float_width.h"

#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ofsdp::kernels {
namespace {

template <typename T>
OFSDP_MULTIARCH void narrow_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<T*>(dst);
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) y[i] = stored<T>(x[i]);
}

template <typename T>
OFSDP_MULTIARCH void widen_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const T*>(src);
  auto* y = static_cast<float*>(dst);
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) y[i] = as_float(x[i]);
}

#if defined(__x86_64__)
constexpr int kSubnormal = 0x20;  // of fpclass

// The processor's own rounding, where there is one: parameters come from memory, and the fewer
// instructions between two reads, the more of them are under way. It takes subnormal numbers for 0,
// so of vectors that hold one the plain loop sees to it: the bits are those of every processor.
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bf16"))) void narrow_span_bf16(
    const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<BFloat16*>(dst);
  int64_t i = begin;
  for (; i + 32 <= end; i += 32) {
    const __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
    if ((_mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal)) != 0) {
      narrow_span<BFloat16>(src, dst, i, i + 32);
      continue;
    }
    _mm512_storeu_si512(y + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  narrow_span<BFloat16>(src, dst, i, end);
}

// The formula of stored<BFloat16>, eight at a time: the loop's unsigned comparison and its packing
// cost the compiler three times as many instructions.
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
  narrow_span<BFloat16>(src, dst, i, end);
}

// float16 by the processor's own instructions, which keep what a NaN carries, where the formula
// does not: vectors with one are left to the formula.
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
      narrow_span<Half>(src, dst, i, i + 8);
      continue;
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT));
  }
  narrow_span<Half>(src, dst, i, end);
}

__attribute__((target("avx2,f16c"))) void widen_span_half(const void* src, void* dst, int64_t begin,
                                                          int64_t end) {
  const auto* x = static_cast<const Half*>(src);
  auto* y = static_cast<float*>(dst);
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
    if (has_nan(wide)) {
      widen_span<Half>(src, dst, i, i + 8);
      continue;
    }
    _mm256_storeu_ps(y + i, wide);
  }
  widen_span<Half>(src, dst, i, end);
}

bool converts_half() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
#endif

WidthSpan narrow_half() {
#if defined(__x86_64__)
  if (converts_half()) return narrow_span_half;
#endif
  return narrow_span<Half>;
}

WidthSpan widen_half() {
#if defined(__x86_64__)
  if (converts_half()) return widen_span_half;
#endif
  return widen_span<Half>;
}

WidthSpan narrow_bf16() {
#if defined(__x86_64__)
  const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq");
  if (has) return narrow_span_bf16;
  if (__builtin_cpu_supports("avx2")) return narrow_span_bf16_avx2;
#endif
  return narrow_span<BFloat16>;
}

}  // namespace

WidthSpan width_span(DType from, DType to) {
  if (from == DType::kFloat32 && to == DType::kBFloat16) return narrow_bf16();
  if (from == DType::kBFloat16 && to == DType::kFloat32) return widen_span<BFloat16>;
  if (from == DType::kFloat32 && to == DType::kFloat16) return narrow_half();
  if (from == DType::kFloat16 && to == DType::kFloat32) return widen_half();
  return nullptr;
}

void widen(DType from, const void* src, float* dst, int64_t numel) {
  const WidthSpan span = width_span(from, DType::kFloat32);
  OFSDP_CHECK(span != nullptr, "widen from {}", dtype_name(from));
  span(src, dst, 0, numel);
}

void narrow(const float* src, DType to, void* dst, int64_t numel) {
  const WidthSpan span = width_span(DType::kFloat32, to);
  OFSDP_CHECK(span != nullptr, "narrow to {}", dtype_name(to));
  span(src, dst, 0, numel);
}

}  // namespace ofsdp::kernels
