// Adagrad (torch.optim.Adagrad, lr_decay 0, initial accumulator 0):
//   g += weight_decay p;  s += g^2;  p -= lr g / (sqrt(s) + eps)
// https://jmlr.org/papers/v12/duchi11a.html
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

struct Factors {
  float minus_lr, weight_decay, eps;
  bool decay;
};

OFSDP_MULTIARCH void adagrad_span(float* __restrict param, const float* __restrict grad,
                                  float* __restrict sum, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.decay ? grad[i] + f.weight_decay * param[i] : grad[i];
    const float s = sum[i] + g * g;
    sum[i] = s;
    param[i] += f.minus_lr * g / (std::sqrt(s) + f.eps);
  }
}

void update(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  const Factors f{static_cast<float>(-span.lr), static_cast<float>(span.weight_decay),
                  static_cast<float>(s.eps), span.weight_decay != 0};
  adagrad_span(span.param, span.grad, span.state[0], span.count, f);
}

void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
  for (int64_t i = 0; i < span.count; ++i) {
    const double g = span.grad[i] + span.weight_decay * span.param[i];
    span.state[0][i] += g * g;
    span.param[i] -= span.lr * g / (std::sqrt(span.state[0][i]) + s.eps);
  }
}

std::vector<std::string> states(const OptimizerSettings&) { return {"sum"}; }

}  // namespace

OptimizerDef adagrad() { return {"adagrad", states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
