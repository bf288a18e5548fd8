// Adafactor: second moments without an average of gradients; kernels/optimizers/factors.h keeps
// those of matrices as factors.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizers/element_update.h"

namespace ofsdp::kernels::updates {

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

}  // namespace ofsdp::kernels::updates
