#include "kernels/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace ofsdp::kernels::attention {
namespace {

template <typename T, typename M>
[[gnu::always_inline]] inline void mask_as(T* s, const M* mask, int64_t step, int64_t n) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(M) == 1) {
      s[i] = mask[i * step] ? s[i] : kNone;
    } else {
      const T m = as_real(mask[i * step]);
      s[i] = m == kNone ? kNone : s[i] + m;
    }
  }
}

template <typename A>
[[gnu::always_inline]] inline void cap_row_by(float* s, int64_t n, float cap) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) s[i] = cap * vector_tanh<A>(s[i] / cap);
}
const auto fastest_cap_row =
    fastest_version<cap_row_by<SeparateMultiplyAdd>, cap_row_by<FusedMultiplyAdd>>();

template <typename A>
[[gnu::always_inline]] inline float exp_row_by(float* s, int64_t n) {
  const float max = lane_max(s, n);
  if (max == -std::numeric_limits<float>::infinity() &&
      std::none_of(s, s + n, [](float v) { return v != v; })) {
    std::fill_n(s, n, 0.0f);
    return 0;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) s[i] = vector_exp_flushed<A>(s[i] - max);
  return lane_sum(n, [s](int64_t i) { return s[i]; });
}
const auto fastest_exp_row =
    fastest_version<exp_row_by<SeparateMultiplyAdd>, exp_row_by<FusedMultiplyAdd>>();

}  // namespace

void cap_row(float* s, int64_t n, float cap) { fastest_cap_row(s, n, cap); }
void cap_row(double* s, int64_t n, double cap) {
  for (int64_t i = 0; i < n; ++i) s[i] = cap * std::tanh(s[i] / cap);
}

template <typename T, typename M>
OFSDP_MULTIARCH void mask_row(T* s, const M* mask, int64_t step, int64_t n) {
  if (step == 1) return mask_as(s, mask, 1, n);
  mask_as(s, mask, step, n);
}
template void mask_row(float*, const bool*, int64_t, int64_t);
template void mask_row(double*, const bool*, int64_t, int64_t);
template void mask_row(float*, const float*, int64_t, int64_t);
template void mask_row(float*, const BFloat16*, int64_t, int64_t);
template void mask_row(double*, const double*, int64_t, int64_t);

float exp_row(float* s, int64_t n) { return fastest_exp_row(s, n); }
double exp_row(double* s, int64_t n) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, s[i]);
  for (int64_t i = 0; i < n; ++i) {
    s[i] = max == -std::numeric_limits<double>::infinity() ? 0 : std::exp(s[i] - max);
    sum += s[i];
  }
  return sum;
}

OFSDP_MULTIARCH void scale_row(const float* s, float factor, float* dst, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dst[i] = s[i] * factor;
}
OFSDP_MULTIARCH void scale_row(const float* s, float factor, BFloat16* dst, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dst[i] = stored<BFloat16>(s[i] * factor);
}
void scale_row(const double* s, double factor, double* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = s[i] * factor;
}

template <typename T>
OFSDP_MULTIARCH void softmax_grad_row(const T* p, T* dp, int64_t n) {
  const T dot = lane_sum(n, [=](int64_t i) { return p[i] * dp[i]; });
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - dot);
}

template <typename T>
OFSDP_MULTIARCH void cap_grad_row(T* ds, const T* capped, T cap, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T t = capped[i] / cap;
    ds[i] *= T{1} - t * t;
  }
}

template void softmax_grad_row(const float*, float*, int64_t);
template void softmax_grad_row(const double*, double*, int64_t);
template void cap_grad_row(float*, const float*, float, int64_t);
template void cap_grad_row(double*, const double*, double, int64_t);

}  // namespace ofsdp::kernels::attention
