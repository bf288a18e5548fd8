// AdamW as Hugging Face Transformers had it until version 4.46 and ONNX Runtime's AdamWOptimizer has
// it with adam_mode 1: eps is added before the correction of the second average, and the decay takes
// what the step has left.
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)
//   p -= lr weight_decay p
// https://huggingface.co/docs/transformers/v4.46.0/en/main_classes/optimizer_schedules
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/adam_update.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

struct Factors {
  float beta1, weight1, beta2, weight2, eps, minus_step, decay;
};

OFSDP_MULTIARCH void update_span(float* __restrict param, const float* __restrict grad,
                                 float* __restrict average, float* __restrict square, int64_t n,
                                 Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i];
    const float m = average[i] * f.beta1 + f.weight1 * g;
    const float v = square[i] * f.beta2 + f.weight2 * g * g;
    average[i] = m;
    square[i] = v;
    const float p = param[i] + f.minus_step * m / (std::sqrt(v) + f.eps);
    param[i] = p - f.decay * p;
  }
}

// The size of a step at update t.
double step_size(const OptimizerSettings& s, double lr, int64_t step) {
  if (!s.bias_correction) return lr;
  const auto t = static_cast<double>(step);
  return lr * std::sqrt(1 - std::pow(s.beta2, t)) / (1 - std::pow(s.beta1, t));
}

void update(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  const auto f32 = [](double value) { return static_cast<float>(value); };
  const Factors f{f32(s.beta1),
                  f32(1 - s.beta1),
                  f32(s.beta2),
                  f32(1 - s.beta2),
                  f32(s.eps),
                  f32(-step_size(s, span.lr, span.step)),
                  f32(span.lr * span.weight_decay)};
  update_span(span.param, span.grad, span.state[0], span.state[1], span.count, f);
}

void reference(const OptimizerSettings& s, const OptimizerSpan<double>& span) {
  const double step = step_size(s, span.lr, span.step);
  for (int64_t i = 0; i < span.count; ++i) {
    double& m = span.state[0][i];
    double& v = span.state[1][i];
    const double g = span.grad[i];
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    span.param[i] -= step * m / (std::sqrt(v) + s.eps);
    span.param[i] -= span.lr * span.weight_decay * span.param[i];
  }
}

}  // namespace

OptimizerDef adamw_transformers() { return {"adamw_transformers", adam_states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
