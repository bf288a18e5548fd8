// Fast elementary functions for results that are rounded to 16 bits: a few instructions each,
// relative error about 1e-6. CUDA's own functions are accurate to half an ulp but take 10 to 30
// instructions, which makes memory-bound kernels compute-bound. Subnormals are flushed to 0, which
// saves three instructions per exponential. NaN stays NaN.
//
// Quick is a float type with fast division, for the parameter T in kernels/formulas; QuickMath is
// the matching M.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

template <typename T>
inline constexpr bool kIsNarrow = sizeof(T) == 2;

// [Note: PTX and the emulator] One PTX instruction each. tests/emulator compiles for the CPU and
// takes the C library's function.
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

// Returns e^x, fast if the result is rounded to 16 bits.
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

// Normal distribution: `below` = P(X <= x), `density` = e^(-x^2 / 2) / sqrt(2 pi), for Gelu and the
// derivative (kernels/formulas/activation.h). Polynomial 26.2.17 in Abramowitz and Stegun, with
// coefficients halved from 7.1.26; error up to 1e-7.
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
