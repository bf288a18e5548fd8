// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2):
//   p -= lr weight_decay p;  c = beta1 m + (1 - beta1) g;  p -= lr sign(c);  m = beta2 m + (1 - beta2) g
// sign(0) is 0. https://arxiv.org/abs/2302.06675
#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

struct Factors {
  float lr, keep, beta1, rest1, beta2, rest2;
};

OFSDP_MULTIARCH void lion_span(float* __restrict param, const float* __restrict grad,
                               float* __restrict momentum, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i], m = momentum[i];
    const float c = f.beta1 * m + f.rest1 * g;
    const float step = c > 0 ? f.lr : c < 0 ? -f.lr : 0.0f;
    param[i] = param[i] * f.keep - step;
    momentum[i] = f.beta2 * m + f.rest2 * g;
  }
}

void update(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  const Factors f{static_cast<float>(span.lr), static_cast<float>(1 - span.lr * span.weight_decay),
                  static_cast<float>(s.beta1), static_cast<float>(1 - s.beta1),
                  static_cast<float>(s.beta2), static_cast<float>(1 - s.beta2)};
  lion_span(span.param, span.grad, span.state[0], span.count, f);
}

void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
  for (int64_t i = 0; i < span.count; ++i) {
    double& m = span.state[0][i];
    const double g = span.grad[i], c = s.beta1 * m + (1 - s.beta1) * g;
    span.param[i] *= 1 - span.lr * span.weight_decay;
    span.param[i] -= span.lr * ((c > 0) - (c < 0));
    m = s.beta2 * m + (1 - s.beta2) * g;
  }
}

std::vector<std::string> states(const OptimizerSettings&) { return {"exp_avg"}; }

}  // namespace

OptimizerDef lion() { return {"lion", states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
