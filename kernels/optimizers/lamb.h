// LAMB: Adam's direction, as long as the norm of the parameter says.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/optimizers/element_update.h"

namespace ofsdp::kernels::updates {

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

}  // namespace ofsdp::kernels::updates
