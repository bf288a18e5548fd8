// Elementary functions for results that are rounded to 16 bits: a few instructions each, with
// relative errors of some 1e-6, where CUDA's own take ten to thirty for half a unit in the last
// place of a float32 and hold kernels back that memory should bound.
//
// Quick is a float whose division and functions are of that kind, a T for kernels/formulas;
// QuickMath is the M of these. NaN stays NaN.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

template <typename T>
inline constexpr bool kIsNarrow = sizeof(T) == 2;

// e^x, for a result that is rounded to T
template <typename T>
__device__ inline float exp_for(float x) {
  if constexpr (kIsNarrow<T>) return __expf(x);
  return expf(x);
}

struct Quick {
  float v;
  __device__ explicit Quick(double x) : v(static_cast<float>(x)) {}
  __device__ explicit Quick(float x) : v(x) {}
  __device__ explicit Quick(int x) : v(static_cast<float>(x)) {}
  __device__ Quick operator-() const { return Quick(-v); }
#define OFSDP_QUICK(operation, ...) \
  __device__ friend auto operator operation(Quick x, Quick y) { return __VA_ARGS__; }
  OFSDP_QUICK(+, Quick(x.v + y.v))
  OFSDP_QUICK(-, Quick(x.v - y.v))
  OFSDP_QUICK(*, Quick(x.v* y.v))
  OFSDP_QUICK(/, Quick(__fdividef(x.v, y.v)))
  OFSDP_QUICK(<, x.v < y.v)
  OFSDP_QUICK(>, x.v > y.v)
#undef OFSDP_QUICK
};

struct QuickMath {
  __device__ static Quick exp(Quick x) { return Quick(__expf(x.v)); }
  // Abramowitz and Stegun 7.1.26: errors up to 1.5e-7.
  __device__ static Quick erf(Quick x) {
    const float most = fabsf(x.v);
    const float t = __fdividef(1.0f, fmaf(0.3275911f, most, 1.0f));
    float sum = fmaf(1.061405429f, t, -1.453152027f);
    sum = fmaf(sum, t, 1.421413741f);
    sum = fmaf(sum, t, -0.284496736f);
    sum = fmaf(sum, t, 0.254829592f);
    return Quick(copysignf(fmaf(-sum * t, __expf(-most * most), 1.0f), x.v));
  }
};

}  // namespace ofsdp::kernels::cuda
