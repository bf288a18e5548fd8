#include "kernels/optimizers/adam_update.h"

#include <cmath>

#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::optimizers {
namespace {

// Computed in double and rounded once, as PyTorch does with Python's floats.
struct Factors {
  float keep;          // decoupled: 1 - lr weight_decay
  float weight_decay;  // of the gradient; unused when decoupled
  float weight1;       // 1 - beta1
  float beta1;
  float beta2, weight2;
  float root_correction2;  // sqrt(1 - beta2^t)
  float eps;
  float minus_step;  // -lr / (1 - beta1^t)
  bool scale_param, decay_grad, far;
};

// torch.lerp, which is exact at its far end too: from 0.5 on it starts there.
inline float lerp(float start, float end, const Factors& f) {
  return f.far ? end - (end - start) * f.beta1 : start + f.weight1 * (end - start);
}

OFSDP_MULTIARCH void adam_span(float* __restrict param, const float* __restrict grad,
                               float* __restrict average, float* __restrict square, int64_t n,
                               Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float p = f.scale_param ? param[i] * f.keep : param[i];
    const float g = f.decay_grad ? grad[i] + f.weight_decay * p : grad[i];
    const float m = lerp(average[i], g, f);
    const float v = square[i] * f.beta2 + f.weight2 * g * g;
    average[i] = m;
    square[i] = v;
    const float denominator = std::sqrt(v) / f.root_correction2 + f.eps;
    param[i] = p + f.minus_step * m / denominator;
  }
}

}  // namespace

std::vector<std::string> adam_states(const OptimizerSettings&) { return {"exp_avg", "exp_avg_sq"}; }

void adam_update(const OptimizerSettings& s, const OptimizerSpan<float>& span, Decay decay) {
  const auto t = static_cast<double>(span.step);
  const auto f32 = [](double value) { return static_cast<float>(value); };
  Factors f;
  f.keep = f32(1 - span.lr * span.weight_decay);
  f.weight_decay = f32(span.weight_decay);
  f.weight1 = f32(1 - s.beta1);
  f.beta1 = 1 - f.weight1;
  f.beta2 = f32(s.beta2);
  f.weight2 = f32(1 - s.beta2);
  f.root_correction2 = s.bias_correction ? f32(std::sqrt(1 - std::pow(s.beta2, t))) : 1.0f;
  f.eps = f32(s.eps);
  f.minus_step = f32(-(span.lr / (s.bias_correction ? 1 - std::pow(s.beta1, t) : 1.0)));
  f.scale_param = decay == Decay::kDecoupled && span.weight_decay != 0;
  f.decay_grad = decay == Decay::kGradient && span.weight_decay != 0;
  f.far = f.weight1 >= 0.5f;
  adam_span(span.param, span.grad, span.state[0], span.state[1], span.count, f);
}

void adam_reference(const OptimizerSettings& s, const OptimizerSpan<double>& span, Decay decay) {
  const auto t = static_cast<double>(span.step);
  for (int64_t i = 0; i < span.count; ++i) {
    double& p = span.param[i];
    double& m = span.state[0][i];
    double& v = span.state[1][i];
    double g = span.grad[i];
    if (decay == Decay::kDecoupled) p -= span.lr * span.weight_decay * p;
    if (decay == Decay::kGradient) g += span.weight_decay * p;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double corrected_m = s.bias_correction ? m / (1 - std::pow(s.beta1, t)) : m;
    const double corrected_v = s.bias_correction ? v / (1 - std::pow(s.beta2, t)) : v;
    p -= span.lr * corrected_m / (std::sqrt(corrected_v) + s.eps);
  }
}

}  // namespace ofsdp::kernels::optimizers
