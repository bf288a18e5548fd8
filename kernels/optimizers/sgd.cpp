// SGD (torch.optim.SGD, dampening 0):
//   g += weight_decay p
//   b = g at the first update, else momentum b + g
//   p -= lr d,  d = g without momentum, g + momentum b with nesterov, else b
#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

struct Factors {
  float minus_lr, weight_decay, momentum;
  bool decay, first, nesterov;
};

OFSDP_MULTIARCH void plain_span(float* __restrict param, const float* __restrict grad, int64_t n,
                                Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.decay ? grad[i] + f.weight_decay * param[i] : grad[i];
    param[i] += f.minus_lr * g;
  }
}

OFSDP_MULTIARCH void momentum_span(float* __restrict param, const float* __restrict grad,
                                   float* __restrict buffer, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.decay ? grad[i] + f.weight_decay * param[i] : grad[i];
    const float b = f.first ? g : f.momentum * buffer[i] + g;
    buffer[i] = b;
    param[i] += f.minus_lr * (f.nesterov ? g + f.momentum * b : b);
  }
}

void update(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  const Factors f{static_cast<float>(-span.lr),
                  static_cast<float>(span.weight_decay),
                  static_cast<float>(s.momentum),
                  span.weight_decay != 0,
                  span.step == 1,
                  s.nesterov};
  if (s.momentum == 0) return plain_span(span.param, span.grad, span.count, f);
  momentum_span(span.param, span.grad, span.state[0], span.count, f);
}

void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
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

std::vector<std::string> states(const OptimizerSettings& s) {
  if (s.momentum == 0) return {};
  return {"momentum_buffer"};
}

}  // namespace

OptimizerDef sgd() { return {"sgd", states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
