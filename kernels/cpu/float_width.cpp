#include "kernels/cpu/float_width.h"

#include <bit>

#include "kernels/core/status.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

// As float_to_bfloat16 and bfloat16_to_float.
OFSDP_MULTIARCH void narrow_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const uint32_t*>(src);
  auto* y = static_cast<uint16_t*>(dst);
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t rounded = (x[i] + 0x7fffu + ((x[i] >> 16) & 1u)) >> 16;
    const uint32_t nan = (x[i] >> 16) | 0x40u;
    y[i] = static_cast<uint16_t>((x[i] & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

OFSDP_MULTIARCH void widen_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const uint16_t*>(src);
  auto* y = static_cast<uint32_t*>(dst);
  for (int64_t i = begin; i < end; ++i) y[i] = static_cast<uint32_t>(x[i]) << 16;
}

// As float_to_half, all three cases computed and one chosen.
OFSDP_MULTIARCH void narrow_half_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const uint32_t*>(src);
  auto* y = static_cast<uint16_t*>(dst);
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t sign = (x[i] >> 16) & 0x8000u;
    const uint32_t magnitude = x[i] & 0x7fffffffu;
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t finite = magnitude < 0x38800000u ? small - 0x3f000000u : normal;
    y[i] = static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? large : finite));
  }
}

// As half_to_float: the product puts the exponent right, subnormals included.
OFSDP_MULTIARCH void widen_half_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const auto* x = static_cast<const uint16_t*>(src);
  auto* y = static_cast<uint32_t*>(dst);
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = x[i];
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t value = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
    y[i] = (bits & 0x8000u) << 16 | value;
  }
}

}  // namespace

WidthSpan width_span(DType from, DType to) {
  if (from == DType::kFloat32 && to == DType::kBFloat16) return narrow_span;
  if (from == DType::kBFloat16 && to == DType::kFloat32) return widen_span;
  if (from == DType::kFloat32 && to == DType::kFloat16) return narrow_half_span;
  if (from == DType::kFloat16 && to == DType::kFloat32) return widen_half_span;
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

}  // namespace ofsdp
