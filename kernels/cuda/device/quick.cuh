// Elementary functions for results that are rounded to 16 bits: a few instructions each, with
// relative errors of some 1e-6, where CUDA's own take ten to thirty for half a unit in the last
// place of a float32 and hold kernels back that memory should bound. Subnormal numbers are 0: to
// keep them costs three instructions more for each e^x.
//
// Quick is a float whose division and functions are of that kind, a T for kernels/formulas;
// QuickMath is the M of these. NaN stays NaN.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

template <typename T>
inline constexpr bool kIsNarrow = sizeof(T) == 2;

// [Note: PTX and the emulator] One instruction of PTX each; tests/emulator, which compiles for the
// CPU, has the C library's.
__device__ inline float quick_exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}
__device__ inline float quick_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
__device__ inline float quick_exp(float x) { return quick_exp2(x * 1.44269504088896340736f); }

// e^x, for a result that is rounded to T
template <typename T>
__device__ inline float exp_for(float x) {
  if constexpr (kIsNarrow<T>) return quick_exp(x);
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
  OFSDP_QUICK(/, Quick(x.v* quick_reciprocal(y.v)))
  OFSDP_QUICK(<, x.v < y.v)
  OFSDP_QUICK(>, x.v > y.v)
#undef OFSDP_QUICK
};

struct QuickMath {
  __device__ static Quick exp(Quick x) { return Quick(quick_exp(x.v)); }
};

// P(X <= x) of a normal number X, and its density e^(-x^2 / 2) / sqrt(2 pi), of which Gelu and its
// derivative (kernels/formulas/gelu.h) are made. Abramowitz and Stegun 26.2.17, whose constants are
// halves of those of 7.1.26: errors up to 1e-7.
struct QuickNormal {
  float below, density;
  __device__ explicit QuickNormal(float x) {
    const float power = quick_exp2(-0.72134752044448170368f * x * x);
    const float t = quick_reciprocal(fmaf(0.23164189f, fabsf(x), 1.0f));
    float sum = fmaf(0.5307027145f, t, -0.7265760135f);
    sum = fmaf(sum, t, 0.7107068705f);
    sum = fmaf(sum, t, -0.142248368f);
    sum = fmaf(sum, t, 0.127414796f);
    const float tail = sum * t * power;  // P(X > |x|)
    below = x > 0 ? 1.0f - tail : tail;
    density = 0.39894228040143267794f * power;
  }
};

}  // namespace ofsdp::kernels::cuda
