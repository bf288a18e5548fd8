// The formulas of the optimizers, one struct each, for the CPU's loops and the CUDA kernels alike.
//
//   Factors, factors(n)       the numbers that all elements share: computed in double, rounded once
//   step(e, gradient, f)      one update of one element and its states, in float32
//   reference(settings, span) the same in double, written independently: the oracle of the tests
//
// The order of operations is PyTorch's. Compilers must not contract a product and a sum.
// Spans are views; they own nothing. Any thread may call.
#pragma once

#include <algorithm>
#include <cmath>

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

// Adam (torch.optim.Adam), t the number of this update:
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

// AdamW of Hugging Face Transformers until version 4.46, which is ONNX Runtime's AdamWOptimizer
// with adam_mode 1: eps is added before the correction of the second average, and the decay applies
// to what the step has left.
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

// The two averages of Adam and their weights, of an optimizer whose decay is L2.
struct TwoAverages {
  GradientDecay decay;
  Lerp average;
  float beta2, weight2;

  OFSDP_BOTH static TwoAverages of(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {GradientDecay::of(n), Lerp::of(1 - s.beta1), f32(s.beta2), f32(1 - s.beta2)};
  }
  // Advances both; returns the gradient with its decay.
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

// NAdam (torch.optim.NAdam, momentum_decay 0.004, L2 decay), m and v the averages of Adam:
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
  // Every factor of the product is below 1, so few are needed until nothing is left of it.
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

// RAdam (torch.optim.RAdam, L2 decay), m and v the averages of Adam:
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
  // 0: the variance is not to be trusted yet.
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

// LAMB (You et al., "Large Batch Optimization for Deep Learning", 2019, algorithm 2), with the two
// averages and their corrections of Adam:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   d = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
//   p -= lr |p| / |d| d      the trust ratio |p| / |d| of a whole parameter; 1 where a norm is 0
// `step` advances m and v, `direction` returns d: the norms need all spans of the parameter.
// https://arxiv.org/abs/1904.00962
struct Lamb : ElementUpdate {
  static constexpr bool kMovesParam = false;
  struct Factors {
    float beta1, rest1, beta2, rest2;
  };
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    const OptimizerSettings& s = n.settings;
    return {f32(s.beta1), f32(1 - s.beta1), f32(s.beta2), f32(1 - s.beta2)};
  }
  OFSDP_BOTH static void step(Element& e, float g, const Factors& f) {
    e.state[0] = f.beta1 * e.state[0] + f.rest1 * g;
    e.state[1] = f.beta2 * e.state[1] + f.rest2 * g * g;
  }

  struct Direction {
    float correction1, root_correction2;  // 1 - beta1^t, sqrt(1 - beta2^t)
    float eps;

    OFSDP_BOTH float operator()(float average, float square, float weight_decay,
                                float param) const {
      const float denominator = std::sqrt(square) / root_correction2 + eps;
      return average / correction1 / denominator + weight_decay * param;
    }
  };
  OFSDP_BOTH static Direction direction(const OptimizerSettings& s, int64_t step) {
    const auto t = static_cast<double>(step);
    return {f32(1 - std::pow(s.beta1, t)), f32(std::sqrt(1 - std::pow(s.beta2, t))), f32(s.eps)};
  }
  OFSDP_BOTH static double step_length(double lr, double param_norm, double direction_norm) {
    return lr * (param_norm == 0 || direction_norm == 0 ? 1.0 : param_norm / direction_norm);
  }

  // REQUIRES: the span is a whole parameter.
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    const auto t = static_cast<double>(span.step);
    std::vector<double> d(static_cast<size_t>(span.count));
    double squares_of_p = 0, squares_of_d = 0;
    for (int64_t i = 0; i < span.count; ++i) {
      double &m = span.state[0][i], &v = span.state[1][i];
      m = s.beta1 * m + (1 - s.beta1) * span.grad[i];
      v = s.beta2 * v + (1 - s.beta2) * span.grad[i] * span.grad[i];
      const double corrected_m = m / (1 - std::pow(s.beta1, t));
      const double corrected_v = v / (1 - std::pow(s.beta2, t));
      double& di = d[static_cast<size_t>(i)];
      di = corrected_m / (std::sqrt(corrected_v) + s.eps) + span.weight_decay * span.param[i];
      squares_of_p += span.param[i] * span.param[i];
      squares_of_d += di * di;
    }
    const bool none = squares_of_p == 0 || squares_of_d == 0;
    const double ratio = none ? 1 : std::sqrt(squares_of_p) / std::sqrt(squares_of_d);
    for (int64_t i = 0; i < span.count; ++i) {
      span.param[i] -= span.lr * ratio * d[static_cast<size_t>(i)];
    }
  }
};

// Adafactor (torch.optim.Adafactor, eps1 2^-23, eps2 1e-3, d 1, beta2_decay -0.8), v the second
// moment:
//   w = t^-0.8;  a parameter of one axis: v = v + w (g^2 - v)
//   its matrices: R = R + w (means of rows of g^2 - R),  C = C + w (means of columns of g^2 - C),
//                 v = R C / max(mean of R, eps1)
//   d = g / max(sqrt(v), eps1);  p *= 1 - lr weight_decay
//   p -= max(eps2, rms(p before)) min(lr, 1 / sqrt(t)) / max(1, rms(d)) d
// `step` advances v of a parameter of one axis; kernels/optimizers/factors.h has R and C.
// https://arxiv.org/abs/1804.04235
struct Adafactor : ElementUpdate {
  static constexpr bool kMovesParam = false;
  static constexpr float kEps = 0x1p-23f;  // of float32
  static constexpr double kLeastRms = 1e-3;
  using Factors = Lerp;

  OFSDP_BOTH static double weight(int64_t step) {
    return std::pow(static_cast<double>(step), -0.8);
  }
  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) { return Lerp::of(weight(n.step)); }
  OFSDP_BOTH static void step(Element& e, float g, const Factors& f) {
    e.state[0] = f(e.state[0], g * g);
  }
  OFSDP_BOTH static float direction(float g, float variance) {
    return 1 / std::sqrt(variance > kEps * kEps ? variance : kEps * kEps) * g;
  }
  OFSDP_BOTH static double step_length(const ParameterNorms& n) {
    const double root = std::sqrt(static_cast<double>(n.count));
    const double most = 1 / std::sqrt(static_cast<double>(n.step));
    const double rms = n.param / root, spread = n.direction / root;
    const double alpha = (rms > kLeastRms ? rms : kLeastRms) * (n.lr < most ? n.lr : most);
    return alpha / (spread > 1 ? spread : 1);
  }

  // REQUIRES: the span is a whole parameter of one axis.
  static void reference(const OptimizerSettings&, const OptimizerSpan<double>& span) {
    const double w = weight(span.step), eps = std::pow(2.0, -23);
    double squares_of_p = 0, squares_of_d = 0;
    std::vector<double> d(static_cast<size_t>(span.count));
    for (int64_t i = 0; i < span.count; ++i) {
      double& v = span.state[0][i];
      v = (1 - w) * v + w * span.grad[i] * span.grad[i];
      double& di = d[static_cast<size_t>(i)];
      di = span.grad[i] / std::max(std::sqrt(v), eps);
      squares_of_p += span.param[i] * span.param[i];
      squares_of_d += di * di;
    }
    const auto n = static_cast<double>(span.count);
    const double rho = std::min(span.lr, 1 / std::sqrt(static_cast<double>(span.step)));
    const double alpha = std::max(1e-3, std::sqrt(squares_of_p / n)) * rho;
    const double length = alpha / std::max(1.0, std::sqrt(squares_of_d / n));
    for (int64_t i = 0; i < span.count; ++i) {
      span.param[i] *= 1 - span.lr * span.weight_decay;
      span.param[i] -= length * d[static_cast<size_t>(i)];
    }
  }
};

// Muon (torch.optim.Muon, in float32), of a parameter of two axes:
//   m = m + (1 - momentum)(g - m);  u = g + momentum (m - g)
//   X = u / max(|u|, eps), transposed where it has more rows than columns; five times
//     G = X X^T,  X = a X + (b G + c G G) X
//   p *= 1 - lr weight_decay;  p -= lr adjust X
// `step` advances m, `direction` returns u; runtime/engine/orthogonal_plan.h makes X of it.
// https://kellerjordan.github.io/posts/muon
struct Muon : ElementUpdate {
  static constexpr bool kMovesParam = false;
  static constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;
  static constexpr double kEps = 1e-7;
  static constexpr int kIterations = 5;
  using Factors = Lerp;

  OFSDP_BOTH static Factors factors(const UpdateNumbers& n) {
    return Lerp::of(1 - n.settings.momentum);
  }
  OFSDP_BOTH static void step(Element& e, float g, const Factors& f) {
    e.state[0] = f(e.state[0], g);
  }
  OFSDP_BOTH static Lerp look_ahead(const OptimizerSettings& s) { return Lerp::of(s.momentum); }
  // Rows and columns as the use has them: out and in.
  static double original_adjust(int64_t rows, int64_t columns) {
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  }
  static double rms_adjust(int64_t rows, int64_t columns) {
    return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }

  // Advances the state alone: the rest is no update of elements.
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; s.momentum != 0 && i < span.count; ++i) {
      double& m = span.state[0][i];
      m = s.momentum * m + (1 - s.momentum) * span.grad[i];
    }
  }
};

}  // namespace ofsdp::kernels::updates
