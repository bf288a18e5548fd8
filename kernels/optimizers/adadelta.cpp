// Adadelta (torch.optim.Adadelta):
//   g += weight_decay p;  s = rho s + (1 - rho) g^2;  d = sqrt(a + eps) / sqrt(s + eps) g
//   a = rho a + (1 - rho) d^2;  p -= lr d
// https://arxiv.org/abs/1212.5701
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

struct Factors {
  float minus_lr, weight_decay, rho, weight, eps;
  bool decay;
};

OFSDP_MULTIARCH void adadelta_span(float* __restrict param, const float* __restrict grad,
                                   float* __restrict square, float* __restrict accumulated,
                                   int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.decay ? grad[i] + f.weight_decay * param[i] : grad[i];
    const float s = square[i] * f.rho + f.weight * g * g;
    const float delta = std::sqrt(accumulated[i] + f.eps) / std::sqrt(s + f.eps) * g;
    square[i] = s;
    accumulated[i] = accumulated[i] * f.rho + f.weight * delta * delta;
    param[i] += f.minus_lr * delta;
  }
}

void update(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  const Factors f{static_cast<float>(-span.lr), static_cast<float>(span.weight_decay),
                  static_cast<float>(s.rho),    static_cast<float>(1 - s.rho),
                  static_cast<float>(s.eps),    span.weight_decay != 0};
  adadelta_span(span.param, span.grad, span.state[0], span.state[1], span.count, f);
}

void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
  for (int64_t i = 0; i < span.count; ++i) {
    const double g = span.grad[i] + span.weight_decay * span.param[i];
    double& square = span.state[0][i];
    double& accumulated = span.state[1][i];
    square = s.rho * square + (1 - s.rho) * g * g;
    const double delta = std::sqrt(accumulated + s.eps) / std::sqrt(square + s.eps) * g;
    accumulated = s.rho * accumulated + (1 - s.rho) * delta * delta;
    span.param[i] -= span.lr * delta;
  }
}

std::vector<std::string> states(const OptimizerSettings&) { return {"square_avg", "acc_delta"}; }

}  // namespace

OptimizerDef adadelta() { return {"adadelta", states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
