// The activations of gates and their slopes, from the result or, if needs_argument, from the
// argument; kernels/ops/recurrent/recurrent_shape.cpp has the formulas.
#pragma once

#include "kernels/cuda/recurrent/recurrent.h"

namespace ofsdp::kernels::cuda {

__device__ inline float gate_of(const GateFunction& a, float x) {
  if (a.clip > 0) x = x > a.clip ? a.clip : x < -a.clip ? -a.clip : x;
  switch (a.kind) {
    OFSDP_CASE(0, 1.0f / (1.0f + expf(-x)));
    OFSDP_CASE(1, tanhf(x));
    OFSDP_CASE(2, x < 0.0f ? 0.0f : x);
    OFSDP_CASE(3, a.alpha * x + a.beta);
    OFSDP_CASE(4, x < 0.0f ? a.alpha * x : x);
    OFSDP_CASE(5, x > a.alpha ? x : 0.0f);
    OFSDP_CASE(6, a.alpha * tanhf(a.beta * x));
    case 7: {
      const float v = a.alpha * x + a.beta;
      return v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;
    }
      OFSDP_CASE(8, x < 0.0f ? a.alpha * (expf(x) - 1.0f) : x);
      OFSDP_CASE(9, x / (1.0f + fabsf(x)));
    default:
      return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
  }
}

__device__ inline float result_slope(const GateFunction& a, float y) {
  if (a.clip > 0) {
    const float low = gate_of(a, -a.clip), high = gate_of(a, a.clip);
    if (y <= fminf(low, high) || y >= fmaxf(low, high)) return 0.0f;
  }
  switch (a.kind) {
    OFSDP_CASE(0, y * (1.0f - y));
    OFSDP_CASE(1, 1.0f - y * y);
    OFSDP_CASE(2, y > 0.0f ? 1.0f : 0.0f);
    OFSDP_CASE(3, a.alpha);
    OFSDP_CASE(4, y > 0.0f ? 1.0f : a.alpha);
    OFSDP_CASE(5, y != 0.0f ? 1.0f : 0.0f);
    OFSDP_CASE(6, a.alpha == 0.0f ? 0.0f : a.beta * (a.alpha - y * (y / a.alpha)));
    OFSDP_CASE(7, y > 0.0f && y < 1.0f ? a.alpha : 0.0f);
    OFSDP_CASE(8, y > 0.0f ? 1.0f : y + a.alpha);
    case 9: {
      const float rest = 1.0f - fabsf(y);
      return rest * rest;
    }
    default:
      return -expm1f(-y);
  }
}

__device__ inline float argument_slope(const GateFunction& a, float x) {
  if (a.clip > 0 && (x < -a.clip || x > a.clip)) return 0.0f;
  switch (a.kind) {
    OFSDP_CASE(4, x > 0.0f ? 1.0f : a.alpha);
    OFSDP_CASE(8, x > 0.0f ? 1.0f : a.alpha * expf(x));
    default:  // 5
      return x > a.alpha ? 1.0f : 0.0f;
  }
}

// The slope at argument x, which is read only if needed, and result y.
__device__ inline float gate_slope(const GateFunction& a, float x, float y) {
  return a.needs_argument ? argument_slope(a, x) : result_slope(a, y);
}

__device__ inline bool active(const RecurrentExtent& e, int64_t t, int64_t b) {
  return t >= 0 && t < e.steps && (e.lens == nullptr || t < e.lens[b]);
}

}  // namespace ofsdp::kernels::cuda
