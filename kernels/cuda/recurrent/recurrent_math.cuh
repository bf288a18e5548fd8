// The activations of gates and their slopes, from the result; kernels/ops/recurrent/recurrent_activation.cpp has the formulas.
#pragma once

#include "kernels/cuda/recurrent/recurrent.h"

namespace ofsdp::kernels::cuda {

__device__ inline float gate_of(const GateFunction& a, float x) {
  if (a.clip > 0) x = x > a.clip ? a.clip : x < -a.clip ? -a.clip : x;
  switch (a.kind) {
    case 0:
      return 1.0f / (1.0f + expf(-x));
    case 1:
      return tanhf(x);
    case 2:
      return x < 0.0f ? 0.0f : x;
    case 3:
      return a.alpha * x + a.beta;
    case 4:
      return x < 0.0f ? a.alpha * x : x;
    case 5:
      return x > a.alpha ? x : 0.0f;
    case 6:
      return a.alpha * tanhf(a.beta * x);
    case 7: {
      const float v = a.alpha * x + a.beta;
      return v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;
    }
    case 8:
      return x < 0.0f ? a.alpha * (expf(x) - 1.0f) : x;
    case 9:
      return x / (1.0f + fabsf(x));
    default:
      return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
  }
}

__device__ inline float gate_slope(const GateFunction& a, float y) {
  if (a.clip > 0) {
    const float low = gate_of(a, -a.clip), high = gate_of(a, a.clip);
    if (y <= fminf(low, high) || y >= fmaxf(low, high)) return 0.0f;
  }
  switch (a.kind) {
    case 0:
      return y * (1.0f - y);
    case 1:
      return 1.0f - y * y;
    case 2:
      return y > 0.0f ? 1.0f : 0.0f;
    case 3:
      return a.alpha;
    case 4:
      return y < 0.0f ? a.alpha : 1.0f;
    case 5:
      return y != 0.0f ? 1.0f : 0.0f;
    case 6:
      return a.beta * (a.alpha - y * y / a.alpha);
    case 7:
      return y > 0.0f && y < 1.0f ? a.alpha : 0.0f;
    case 8:
      return y < 0.0f ? y + a.alpha : 1.0f;
    case 9: {
      const float rest = 1.0f - fabsf(y);
      return rest * rest;
    }
    default:
      return 1.0f - expf(-y);
  }
}

__device__ inline bool active(const RecurrentExtent& e, int64_t t, int64_t b) {
  return t >= 0 && t < e.steps && (e.lens == nullptr || t < e.lens[b]);
}

}  // namespace ofsdp::kernels::cuda
