// Elementwise optimizers: shared pieces, SGD, Adagrad and relatives, Adam and relatives.
//
// Each optimizer is one struct, which CPU loops and CUDA kernels share:
//
//   Factors, factors(n)       numbers that all elements share: computed in double, rounded once
//   step(e, gradient, f)      updates one element of parameter and states, in float32
//   reference(settings, span) the same in double, written independently; tests compare with it
//
// In the formulas g is the gradient, p the parameter, lr the learning rate, t the update number
// from 1. Operations have PyTorch's order. Compilers must not contract products and sums to FMAs.
#pragma once

#include <cmath>

#include "kernels/core/device_values.h"
#include "kernels/core/optimizer.h"

#ifdef __CUDACC__
#define OFSDP_BOTH __host__ __device__
#else
#define OFSDP_BOTH
#endif

namespace ofsdp::kernels::updates {

struct Element {
  float param;
  float state[2];  // in state_names order
};

struct UpdateNumbers {
  const OptimizerSettings& settings;
  double lr;
  double weight_decay;
  int64_t step;  // from 1; skipped updates do not count
};

OFSDP_BOTH inline float f32(double value) { return static_cast<float>(value); }

// Returns the learning rate of rows with the base rate `base_lr` (UpdateSpec).
OFSDP_BOTH inline double rate_of(const ofsdp_step_numbers& numbers, double base_lr) {
  return base_lr < 0 ? numbers.lr : base_lr * numbers.factor;
}

// torch.lerp: exact at both ends, because from weight 0.5 on it starts at the far end.
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
  static constexpr bool kMovesParam = true;  // false: `step` only advances the states
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

// Optimizers with an average gradient and no squares: SGD and Lion.

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

// Adagrad and its successors: steps along the gradient, divided by the root of the sum of squares
// so far.

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

// RMSprop (torch.optim.RMSprop not centered); OptimizerSettings::rho is alpha:
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

// Adam and its variants: steps along an average gradient, divided by the root of average squares.

// Adam (torch.optim.Adam), t the update number:
//   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// https://arxiv.org/abs/1412.6980
// With `decoupled`, AdamW (torch.optim.AdamW): p *= 1 - lr weight_decay instead of the first line.
// https://arxiv.org/abs/1711.05101
template <bool decoupled>
struct AdamUpdate : ElementUpdate {
  struct Factors {
    float keep;  // 1 - lr weight_decay
    GradientDecay decay;
    Lerp average;
    float beta2, weight2;
    float root_correction2;  // sqrt(1 - beta2^t)
    float eps;
    float minus_step;  // -lr / (1 - beta1^t)
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    const auto t = static_cast<double>(n.step);
    return {.keep = f32(1 - n.lr * n.weight_decay),
            .decay = GradientDecay::of(n),
            .average = Lerp::of(1 - s.beta1),
            .beta2 = f32(s.beta2),
            .weight2 = f32(1 - s.beta2),
            .root_correction2 = s.bias_correction ? f32(std::sqrt(1 - std::pow(s.beta2, t))) : 1.0f,
            .eps = f32(s.eps),
            .minus_step = f32(-(n.lr / (s.bias_correction ? 1 - std::pow(s.beta1, t) : 1.0)))};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    const float p = decoupled && f.decay.decays ? e.param * f.keep : e.param;
    const float g = decoupled ? gradient : f.decay(gradient, p);
    const float m = f.average(e.state[0], g);
    const float v = e.state[1] * f.beta2 + f.weight2 * g * g;
    e.state[0] = m;
    e.state[1] = v;
    e.param = p + f.minus_step * m / (std::sqrt(v) / f.root_correction2 + f.eps);
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    const auto t = static_cast<double>(span.step);
    for (int64_t i = 0; i < span.count; ++i) {
      double &p = span.param[i], &m = span.state[0][i], &v = span.state[1][i];
      double g = span.grad[i];
      if (decoupled) p -= span.lr * span.weight_decay * p;
      if (!decoupled) g += span.weight_decay * p;
      m = s.beta1 * m + (1 - s.beta1) * g;
      v = s.beta2 * v + (1 - s.beta2) * g * g;
      const double corrected_m = s.bias_correction ? m / (1 - std::pow(s.beta1, t)) : m;
      const double corrected_v = s.bias_correction ? v / (1 - std::pow(s.beta2, t)) : v;
      p -= span.lr * corrected_m / (std::sqrt(corrected_v) + s.eps);
    }
  }
};
using Adam = AdamUpdate<false>;
using AdamW = AdamUpdate<true>;

// AdamW as in Hugging Face Transformers until version 4.46, which is ONNX Runtime's AdamWOptimizer
// with adam_mode 1: it adds eps before it corrects the second average, and decays the parameter
// after the step.
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)
//   p -= lr weight_decay p
// https://huggingface.co/docs/transformers/v4.46.0/en/main_classes/optimizer_schedules
struct AdamWTransformers : ElementUpdate {
  struct Factors {
    float beta1, weight1, beta2, weight2, eps, minus_step, decay;
  };
  OFSDP_BOTH static double step_size(const OptimizerSettings& s, double lr, int64_t step) {
    if (!s.bias_correction) return lr;
    const auto t = static_cast<double>(step);
    return lr * std::sqrt(1 - std::pow(s.beta2, t)) / (1 - std::pow(s.beta1, t));
  }
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {.beta1 = f32(s.beta1),
            .weight1 = f32(1 - s.beta1),
            .beta2 = f32(s.beta2),
            .weight2 = f32(1 - s.beta2),
            .eps = f32(s.eps),
            .minus_step = f32(-step_size(s, n.lr, n.step)),
            .decay = f32(n.lr * n.weight_decay)};
  }
  OFSDP_BOTH static void step(Element& e, float g, const Factors& f) {
    const float m = e.state[0] * f.beta1 + f.weight1 * g;
    const float v = e.state[1] * f.beta2 + f.weight2 * g * g;
    e.state[0] = m;
    e.state[1] = v;
    const float p = e.param + f.minus_step * m / (std::sqrt(v) + f.eps);
    e.param = p - f.decay * p;
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    const double length = step_size(s, span.lr, span.step);
    for (int64_t i = 0; i < span.count; ++i) {
      double &p = span.param[i], &m = span.state[0][i], &v = span.state[1][i];
      const double g = span.grad[i];
      m = s.beta1 * m + (1 - s.beta1) * g;
      v = s.beta2 * v + (1 - s.beta2) * g * g;
      p -= length * m / (std::sqrt(v) + s.eps);
      p -= span.lr * span.weight_decay * p;
    }
  }
};

// Adam's two averages and their weights, for optimizers with L2 decay.
struct TwoAverages {
  GradientDecay decay;
  Lerp average;
  float beta2, weight2;

  OFSDP_BOTH static TwoAverages of(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {GradientDecay::of(n), Lerp::of(1 - s.beta1), f32(s.beta2), f32(1 - s.beta2)};
  }
  // Advances both averages; returns the gradient with decay added.
  OFSDP_BOTH float advance(Element& e, float gradient) const {
    const float g = decay(gradient, e.param);
    e.state[0] = average(e.state[0], g);
    e.state[1] = e.state[1] * beta2 + weight2 * g * g;
    return g;
  }
  static double reference(const OptimizerSettings& s, const OptimizerSpan<double>& span,
                          int64_t i) {
    const double g = span.grad[i] + span.weight_decay * span.param[i];
    span.state[0][i] = s.beta1 * span.state[0][i] + (1 - s.beta1) * g;
    span.state[1][i] = s.beta2 * span.state[1][i] + (1 - s.beta2) * g * g;
    return g;
  }
};

// NAdam (torch.optim.NAdam, momentum_decay 0.004, L2 decay), m and v Adam's averages:
//   mu_t = beta1 (1 - 0.96^(0.004 t) / 2);  M_t = mu_1 ... mu_t
//   p -= lr ((1 - mu_t) / (1 - M_t) g + mu_{t+1} / (1 - M_t mu_{t+1}) m)
//        / (sqrt(v / (1 - beta2^t)) + eps)
// https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ
struct NAdam : ElementUpdate {
  struct Factors {
    TwoAverages averages;
    float correction2, eps, minus_gradient, minus_average;
  };
  struct Momentum {
    double now, next, product;  // mu_t, mu_{t+1}, M_t
  };
  OFSDP_BOTH static double momentum(const OptimizerSettings& s, int64_t step) {
    return s.beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(step) * 0.004));
  }
  // Every factor is below 1, so the product falls below kNothing and the loop ends early.
  OFSDP_BOTH static Momentum momentum_at(const OptimizerSettings& s, int64_t step) {
    constexpr double kNothing = 1e-20;
    double product = 1;
    for (int64_t t = 1; t <= step && product > kNothing; ++t) product *= momentum(s, t);
    return {momentum(s, step), momentum(s, step + 1), product};
  }
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    const Momentum mu = momentum_at(s, n.step);
    return {.averages = TwoAverages::of(n),
            .correction2 = f32(1 - std::pow(s.beta2, static_cast<double>(n.step))),
            .eps = f32(s.eps),
            .minus_gradient = f32(-n.lr * (1 - mu.now) / (1 - mu.product)),
            .minus_average = f32(-n.lr * mu.next / (1 - mu.product * mu.next))};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    const float g = f.averages.advance(e, gradient);
    const float root = std::sqrt(e.state[1] / f.correction2) + f.eps;
    e.param = e.param + f.minus_gradient * g / root;
    e.param = e.param + f.minus_average * e.state[0] / root;
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    double product = 1;
    for (int64_t t = 1; t <= span.step; ++t) product *= momentum(s, t);
    const double now = momentum(s, span.step), next = momentum(s, span.step + 1);
    for (int64_t i = 0; i < span.count; ++i) {
      const double g = TwoAverages::reference(s, span, i);
      const double v = span.state[1][i] / (1 - std::pow(s.beta2, static_cast<double>(span.step)));
      const double looks_ahead =
          (1 - now) / (1 - product) * g + next / (1 - product * next) * span.state[0][i];
      span.param[i] -= span.lr * looks_ahead / (std::sqrt(v) + s.eps);
    }
  }
};

// RAdam (torch.optim.RAdam, L2 decay), m and v Adam's averages:
//   R = 2 / (1 - beta2) - 1;  r = R - 2 t beta2^t / (1 - beta2^t);  d = m / (1 - beta1^t)
//   r > 5: d *= sqrt((r-4)(r-2) R / ((R-4)(R-2) r)) sqrt(1 - beta2^t) / (sqrt(v) + eps)
//   p -= lr d
// https://arxiv.org/abs/1908.03265
struct RAdam : ElementUpdate {
  struct Factors {
    TwoAverages averages;
    float correction1, lr, root_correction2, eps;
    float rectification;  // 0: none
  };
  // 0 while the variance is unreliable.
  OFSDP_BOTH static double rectification(const OptimizerSettings& s, int64_t step) {
    const auto t = static_cast<double>(step);
    const double power = std::pow(s.beta2, t), most = 2 / (1 - s.beta2) - 1;
    const double length = most - 2 * t * power / (1 - power);
    if (length <= 5) return 0;
    return std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
  }
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    const auto t = static_cast<double>(n.step);
    const double rect = rectification(s, n.step);
    return {.averages = TwoAverages::of(n),
            .correction1 = f32(1 - std::pow(s.beta1, t)),
            .lr = f32(n.lr),
            .root_correction2 = f32(std::sqrt(1 - std::pow(s.beta2, t))),
            .eps = f32(s.eps),
            .rectification = f32(rect)};
  }
  OFSDP_BOTH static void step(Element& e, float gradient, const Factors& f) {
    f.averages.advance(e, gradient);
    float d = e.state[0] / f.correction1 * f.lr;
    if (f.rectification > 0) {
      d = d * (f.root_correction2 / (std::sqrt(e.state[1]) + f.eps)) * f.rectification;
    }
    e.param = e.param - d;
  }
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    const auto t = static_cast<double>(span.step);
    const double rect = rectification(s, span.step);
    for (int64_t i = 0; i < span.count; ++i) {
      TwoAverages::reference(s, span, i);
      double d = span.state[0][i] / (1 - std::pow(s.beta1, t));
      const double root = std::sqrt(span.state[1][i]) + s.eps;
      if (rect > 0) d *= rect * std::sqrt(1 - std::pow(s.beta2, t)) / root;
      span.param[i] -= span.lr * d;
    }
  }
};

}  // namespace ofsdp::kernels::updates
