// Conversions for NEON, which every aarch64 processor has.
#include "kernels/cpu/stored_floats.h"

#include <arm_neon.h>

namespace ofsdp::kernels {
namespace {

// The formula in stored<BFloat16>, four at a time.
uint16x4_t rounded_bf16(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t high = vshrq_n_u32(bits, 16);
  const uint32x4_t half = vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, half), 16);
  const uint32x4_t nan = vorrq_u32(high, vdupq_n_u32(0x40));
  return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, nan));
}

void narrow_span_bf16(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<uint16_t*>(dst);
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    vst1_u16(y + i, rounded_bf16(vld1q_f32(x + i)));
    vst1_u16(y + i + 4, rounded_bf16(vld1q_f32(x + i + 4)));
  }
  plain_narrow_bf16(src, dst, i, end);
}

// float16 by the processor's own instructions. They keep a NaN's payload and the formula does not,
// so the formula converts vectors with a NaN.
bool has_nan(float32x4_t x) { return vminvq_u32(vceqq_f32(x, x)) == 0; }

void narrow_span_half(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<uint16_t*>(dst);
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    const float32x4_t wide = vld1q_f32(x + i);
    if (has_nan(wide)) {
      plain_narrow_half(src, dst, i, i + 4);
      continue;
    }
    vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(wide)));
  }
  plain_narrow_half(src, dst, i, end);
}

void widen_span_half(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const uint16_t*>(src);
  auto* y = static_cast<float*>(dst);
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    const float32x4_t wide = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i)));
    if (has_nan(wide)) {
      plain_widen_half(src, dst, i, i + 4);
      continue;
    }
    vst1q_f32(y + i, wide);
  }
  plain_widen_half(src, dst, i, end);
}

}  // namespace

WidthSpan own_narrow_bf16() { return narrow_span_bf16; }
WidthSpan own_narrow_half() { return narrow_span_half; }
WidthSpan own_widen_half() { return widen_span_half; }

}  // namespace ofsdp::kernels
