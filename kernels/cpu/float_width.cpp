#include "kernels/cpu/float_width.h"

#include "kernels/core/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp {
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

}  // namespace

WidthSpan width_span(DType from, DType to) {
  if (from == DType::kFloat32 && to == DType::kBFloat16) return narrow_span<BFloat16>;
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

}  // namespace ofsdp
