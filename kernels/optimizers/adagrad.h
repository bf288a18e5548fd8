// Adagrad and its successors: steps along the gradient, over the root of its squares so far.
#pragma once

#include <cmath>

#include "kernels/optimizers/element_update.h"

namespace ofsdp::kernels::updates {

// Adagrad (torch.optim.Adagrad, lr_decay 0, initial accumulator 0):
//   g += weight_decay p;  s += g^2;  p -= lr g / (sqrt(s) + eps)
// https://jmlr.org/papers/v12/duchi11a.html
struct Adagrad : ElementUpdate {
  struct Factors {
    float minus_lr;
    GradientDecay decay;
    float eps;
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    return {f32(-n.lr), GradientDecay::of(n), f32(n.settings.eps)};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    const float g = f.decay(gradient, e.param);
    e.state[0] = e.state[0] + g * g;
    e.param += f.minus_lr * g / (std::sqrt(e.state[0]) + f.eps);
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; i < span.count; ++i) {
      const double g = span.grad[i] + span.weight_decay * span.param[i];
      span.state[0][i] += g * g;
      span.param[i] -= span.lr * g / (std::sqrt(span.state[0][i]) + s.eps);
    }
  }
};

// Adadelta (torch.optim.Adadelta):
//   g += weight_decay p;  s = rho s + (1 - rho) g^2;  d = sqrt(a + eps) / sqrt(s + eps) g
//   a = rho a + (1 - rho) d^2;  p -= lr d
// https://arxiv.org/abs/1212.5701
struct Adadelta : ElementUpdate {
  struct Factors {
    float minus_lr;
    GradientDecay decay;
    float rho, weight, eps;
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {f32(-n.lr), GradientDecay::of(n), f32(s.rho), f32(1 - s.rho), f32(s.eps)};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    const float g = f.decay(gradient, e.param);
    const float s = e.state[0] * f.rho + f.weight * g * g;
    const float delta = std::sqrt(e.state[1] + f.eps) / std::sqrt(s + f.eps) * g;
    e.state[0] = s;
    e.state[1] = e.state[1] * f.rho + f.weight * delta * delta;
    e.param += f.minus_lr * delta;
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; i < span.count; ++i) {
      const double g = span.grad[i] + span.weight_decay * span.param[i];
      double &square = span.state[0][i], &accumulated = span.state[1][i];
      square = s.rho * square + (1 - s.rho) * g * g;
      const double delta = std::sqrt(accumulated + s.eps) / std::sqrt(square + s.eps) * g;
      accumulated = s.rho * accumulated + (1 - s.rho) * delta * delta;
      span.param[i] -= span.lr * delta;
    }
  }
};

// RMSprop (torch.optim.RMSprop not centered), rho its alpha:
//   g += weight_decay p;  s = alpha s + (1 - alpha) g^2;  d = g / (sqrt(s) + eps)
//   p -= lr d without momentum, else b = momentum b + d, p -= lr b
// https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf
struct RmsProp : ElementUpdate {
  struct Factors {
    GradientDecay decay;
    float minus_lr, alpha, weight, eps, momentum;
    bool moves;
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {.decay = GradientDecay::of(n),
            .minus_lr = f32(-n.lr),
            .alpha = f32(s.rho),
            .weight = f32(1 - s.rho),
            .eps = f32(s.eps),
            .momentum = f32(s.momentum),
            .moves = s.momentum != 0};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    const float g = f.decay(gradient, e.param);
    const float s = e.state[0] * f.alpha + f.weight * g * g;
    const float root = std::sqrt(s) + f.eps;
    e.state[0] = s;
    if (!f.moves) {
      e.param += f.minus_lr * g / root;
      return;
    }
    e.state[1] = e.state[1] * f.momentum + g / root;
    e.param += f.minus_lr * e.state[1];
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; i < span.count; ++i) {
      const double g = span.grad[i] + span.weight_decay * span.param[i];
      double& square = span.state[0][i];
      square = s.rho * square + (1 - s.rho) * g * g;
      double d = g / (std::sqrt(square) + s.eps);
      if (s.momentum != 0) d = span.state[1][i] = s.momentum * span.state[1][i] + d;
      span.param[i] -= span.lr * d;
    }
  }
};

}  // namespace ofsdp::kernels::updates
