// LAMB (You et al., "Large Batch Optimization for Deep Learning", 2019, algorithm 2), with the two
// averages and their corrections of Adam:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   d = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
//   p -= lr |p| / |d| d      the trust ratio |p| / |d| of a whole parameter; 1 where a norm is 0
// `update` advances m and v, `direction` gives d: the norms need all spans of the parameter.
// https://arxiv.org/abs/1904.00962
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/adam_update.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

struct Averages {
  float beta1, rest1, beta2, rest2;
};

OFSDP_MULTIARCH void average_span(const float* __restrict grad, float* __restrict average,
                                  float* __restrict square, int64_t n, Averages f) {
  for (int64_t i = 0; i < n; ++i) {
    average[i] = f.beta1 * average[i] + f.rest1 * grad[i];
    square[i] = f.beta2 * square[i] + f.rest2 * grad[i] * grad[i];
  }
}

struct Direction {
  float correction1, root_correction2;  // 1 - beta1^t, sqrt(1 - beta2^t)
  float eps, weight_decay;
};

OFSDP_MULTIARCH void direction_span(const float* __restrict param, const float* __restrict average,
                                    const float* __restrict square, float* __restrict direction,
                                    int64_t n, Direction f) {
  for (int64_t i = 0; i < n; ++i) {
    const float denominator = std::sqrt(square[i]) / f.root_correction2 + f.eps;
    direction[i] = average[i] / f.correction1 / denominator + f.weight_decay * param[i];
  }
}

void update(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  average_span(span.grad, span.state[0], span.state[1], span.count,
               {static_cast<float>(s.beta1), static_cast<float>(1 - s.beta1),
                static_cast<float>(s.beta2), static_cast<float>(1 - s.beta2)});
}

void direction(const OptimizerSettings& s, const OptimizerSpan<float>& span, float* out) {
  const auto t = static_cast<double>(span.step);
  direction_span(span.param, span.state[0], span.state[1], out, span.count,
                 {static_cast<float>(1 - std::pow(s.beta1, t)),
                  static_cast<float>(std::sqrt(1 - std::pow(s.beta2, t))),
                  static_cast<float>(s.eps), static_cast<float>(span.weight_decay)});
}

double step_length(const OptimizerSettings&, const ParameterNorms& n) {
  return n.lr * (n.param == 0 || n.direction == 0 ? 1.0 : n.param / n.direction);
}

// Of a span that is a whole parameter.
void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
  const auto t = static_cast<double>(span.step);
  std::vector<double> d(static_cast<size_t>(span.count));
  double squares_of_p = 0, squares_of_d = 0;
  for (int64_t i = 0; i < span.count; ++i) {
    double& m = span.state[0][i];
    double& v = span.state[1][i];
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

}  // namespace

OptimizerDef lamb() { return {"lamb", adam_states, update, reference, direction, step_length}; }

}  // namespace ofsdp::kernels::optimizers
