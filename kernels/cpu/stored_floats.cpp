#include "kernels/cpu/stored_floats.h"

#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"

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

// The processor's own loop, else the plain one.
WidthSpan best(WidthSpan own, WidthSpan plain) { return own != nullptr ? own : plain; }

}  // namespace

void plain_narrow_bf16(const void* src, void* dst, int64_t begin, int64_t end) {
  narrow_span<BFloat16>(src, dst, begin, end);
}

void plain_narrow_half(const void* src, void* dst, int64_t begin, int64_t end) {
  narrow_span<Half>(src, dst, begin, end);
}

void plain_widen_half(const void* src, void* dst, int64_t begin, int64_t end) {
  widen_span<Half>(src, dst, begin, end);
}

WidthSpan width_span(DType from, DType to) {
  if (from == DType::kFloat32 && to == DType::kBFloat16) {
    return best(own_narrow_bf16(), plain_narrow_bf16);
  }
  if (from == DType::kBFloat16 && to == DType::kFloat32) return widen_span<BFloat16>;
  if (from == DType::kFloat32 && to == DType::kFloat16) {
    return best(own_narrow_half(), plain_narrow_half);
  }
  if (from == DType::kFloat16 && to == DType::kFloat32) {
    return best(own_widen_half(), plain_widen_half);
  }
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
