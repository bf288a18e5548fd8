// Formulas of optimizers that need a whole parameter for a step: LAMB and Adafactor need norms,
// Muon the matrix. Each struct has `step`, which advances the states of one element; the update
// operations of kernels/core/update.h call the rest, after ranks have exchanged norms or sums.
// updates.h explains the other members.
//
// In the formulas g is the gradient, p the parameter, lr the learning rate, t the update number
// from 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizers/updates.h"

namespace ofsdp::kernels::updates {

// LAMB (You et al., "Large Batch Optimization for Deep Learning", 2019, algorithm 2): Adam's
// direction, scaled by the parameter's norm.
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   d = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
//   p -= lr |p| / |d| d      with norms over the whole parameter; |p| / |d| is 1 if a norm is 0
// `step` advances m and v, `direction` returns d.
// https://arxiv.org/abs/1904.00962
struct Lamb : ElementUpdate {
  static constexpr bool kMovesParam = false;
  struct Factors {
    float beta1, rest1, beta2, rest2;  // rest: 1 - beta
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

// Adafactor (torch.optim.Adafactor, eps1 2^-23, eps2 1e-3, d 1, beta2_decay -0.8) keeps second
// moments v, and no average gradient. For a parameter with two axes or more it keeps only factors
// of v: R has a number per row, C a number per column:
//   w = t^-0.8;  one axis: v = v + w (g^2 - v)
//   matrices: R = R + w (row means of g^2 - R),  C = C + w (column means of g^2 - C),
//             v = R C / max(mean R, eps1)
//   d = g / max(sqrt(v), eps1);  p *= 1 - lr weight_decay
//   p -= max(eps2, rms(p before)) min(lr, 1 / sqrt(t)) / max(1, rms(d)) d
// `step` advances v for parameters with one axis; kernels/core/optimizer.h has R and C.
// https://arxiv.org/abs/1804.04235
struct Adafactor : ElementUpdate {
  static constexpr bool kMovesParam = false;
  static constexpr float kEps = 0x1p-23f;  // float32's epsilon
  static constexpr double kMinRms = 1e-3;
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
    const double alpha = (rms > kMinRms ? rms : kMinRms) * (n.lr < most ? n.lr : most);
    return alpha / (spread > 1 ? spread : 1);
  }

  // REQUIRES: the span is a whole parameter with one axis.
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

// Muon (torch.optim.Muon, in float32), for parameters with two axes, steps along the average
// gradient made orthogonal:
//   m = m + (1 - momentum)(g - m);  u = g + momentum (m - g)
//   X = u / max(|u|, eps), transposed if it has more rows than columns; five times
//     G = X X^T,  X = a X + (b G + c G G) X
//   p *= 1 - lr weight_decay;  p -= lr adjust X
// `step` advances m, `direction` returns u; runtime/engine/orthogonal_plan.h computes X.
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
  // The factors `adjust` of --muon-adjust original and match_rms_adamw. `rows`: the layer's output
  // features; `columns`: input features.
  static double original_adjust(int64_t rows, int64_t columns) {
    return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  }
  static double rms_adjust(int64_t rows, int64_t columns) {
    return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }

  // Only advances the state, since the step is not elementwise; tests compute the step themselves.
  static void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
    for (int64_t i = 0; s.momentum != 0 && i < span.count; ++i) {
      double& m = span.state[0][i];
      m = s.momentum * m + (1 - s.momentum) * span.grad[i];
    }
  }
};

}  // namespace ofsdp::kernels::updates
