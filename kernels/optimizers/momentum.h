// Optimizers that keep an average of gradients and no squares: SGD and Lion.
#pragma once

#include "kernels/optimizers/element_update.h"

namespace ofsdp::kernels::updates {

// SGD (torch.optim.SGD, dampening 0):
//   g += weight_decay p
//   b = g at the first update, else momentum b + g
//   p -= lr d,  d = g without momentum, g + momentum b with nesterov, else b
struct Sgd : ElementUpdate {
  struct Factors {
    float minus_lr;
    GradientDecay decay;
    float momentum;
    bool moves, first, nesterov;
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {.minus_lr = f32(-n.lr),
            .decay = GradientDecay::of(n),
            .momentum = f32(s.momentum),
            .moves = s.momentum != 0,
            .first = n.step == 1,
            .nesterov = s.nesterov};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    const float g = f.decay(gradient, e.param);
    if (!f.moves) {
      e.param += f.minus_lr * g;
      return;
    }
    const float b = f.first ? g : f.momentum * e.state[0] + g;
    e.state[0] = b;
    e.param += f.minus_lr * (f.nesterov ? g + f.momentum * b : b);
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; i < span.count; ++i) {
      double d = span.grad[i] + span.weight_decay * span.param[i];
      if (s.momentum != 0) {
        double& b = span.state[0][i];
        b = span.step == 1 ? d : s.momentum * b + d;
        d = s.nesterov ? d + s.momentum * b : b;
      }
      span.param[i] -= span.lr * d;
    }
  }
};

// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2):
//   p -= lr weight_decay p;  c = beta1 m + (1 - beta1) g;  p -= lr sign(c)
//   m = beta2 m + (1 - beta2) g
// sign(0) is 0. https://arxiv.org/abs/2302.06675
struct Lion : ElementUpdate {
  struct Factors {
    float lr, keep, beta1, rest1, beta2, rest2;
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {f32(n.lr),    f32(1 - n.lr * n.weight_decay),
            f32(s.beta1), f32(1 - s.beta1),
            f32(s.beta2), f32(1 - s.beta2)};
  }
  OFSDP_BOTH static void step(Element& e, float g, const Factors& f) {
    const float m = e.state[0];
    const float c = f.beta1 * m + f.rest1 * g;
    const float length = c > 0 ? f.lr : c < 0 ? -f.lr : 0.0f;
    e.param = e.param * f.keep - length;
    e.state[0] = f.beta2 * m + f.rest2 * g;
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; i < span.count; ++i) {
      double& m = span.state[0][i];
      const double g = span.grad[i], c = s.beta1 * m + (1 - s.beta1) * g;
      span.param[i] *= 1 - span.lr * span.weight_decay;
      span.param[i] -= span.lr * ((c > 0) - (c < 0));
      m = s.beta2 * m + (1 - s.beta2) * g;
    }
  }
};

}  // namespace ofsdp::kernels::updates
