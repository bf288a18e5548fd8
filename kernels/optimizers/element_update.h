// Updates of elements: the pieces that the formulas of all optimizers are made of, for the CPU's
// loops and the CUDA kernels alike. A formula is one struct:
//
//   Factors, factors(n)       the numbers that all elements share: computed in double, rounded once
//   step(e, gradient, f)      one update of one element and its states, in float32
//   reference(settings, span) the same in double, written independently: the oracle of the tests
//
// The order of operations is PyTorch's. Compilers must not contract a product and a sum.
// Spans are views; they own nothing. Any thread may call.
#pragma once

#include "kernels/core/optimizer.h"

#ifdef __CUDACC__
#define OFSDP_BOTH __host__ __device__
#else
#define OFSDP_BOTH
#endif

namespace ofsdp::kernels::updates {

struct Element {
  float param;
  float state[2];  // in the order of the optimizer's state_names
};

struct UpdateNumbers {
  const OptimizerSettings& settings;
  double lr;
  double weight_decay;
  int64_t step;  // from 1; skipped updates do not count
};

OFSDP_BOTH inline float f32(double value) { return static_cast<float>(value); }

// torch.lerp, which is exact at its far end too: from 0.5 on it starts there.
struct Lerp {
  float weight, rest;
  bool far;

  OFSDP_BOTH static Lerp of(double weight) {
    return {f32(weight), 1 - f32(weight), f32(weight) >= 0.5f};
  }
  OFSDP_BOTH float operator()(float from, float to) const {
    return far ? to - (to - from) * rest : from + weight * (to - from);
  }
};

struct ElementUpdate {
  static constexpr bool kMovesParam = true;  // false: `step` advances the states only
};

// L2 decay: the gradient plus weight_decay p.
struct GradientDecay {
  float weight_decay;
  bool decays;

  OFSDP_BOTH static GradientDecay of(const UpdateNumbers& n) {
    return {f32(n.weight_decay), n.weight_decay != 0};
  }
  OFSDP_BOTH float operator()(float gradient, float param) const {
    return decays ? gradient + weight_decay * param : gradient;
  }
};

}  // namespace ofsdp::kernels::updates
