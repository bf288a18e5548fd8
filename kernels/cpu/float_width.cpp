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
#endif

WidthSpan narrow_bf16() {
#if defined(__x86_64__)
  const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq");
  if (has) return narrow_span_bf16;
#endif
  return narrow_span<BFloat16>;
}

}  // namespace

WidthSpan width_span(DType from, DType to) {
  if (from == DType::kFloat32 && to == DType::kBFloat16) return narrow_bf16();
  if (from == DType::kBFloat16 && to == DType::kFloat32) return widen_span<BFloat16>;
  if (from == DType::kFloat32 && to == DType::kFloat16) return narrow_span<Half>;
  if (from == DType::kFloat16 && to == DType::kFloat32) return widen_span<Half>;
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
