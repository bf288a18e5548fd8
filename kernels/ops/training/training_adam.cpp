// ai.onnx.preview.training.Adam, with t updates done before this one:
//   g += norm_coefficient x;  v' = alpha v + (1 - alpha) g;  h' = beta h + (1 - beta) g^2
//   r = t > 0 ? R sqrt(1 - beta^t) / (1 - alpha^t) : R
//   x' = (1 - norm_coefficient_post) (x - r v' / (sqrt(h') + epsilon))
// https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/training/training_update.h"

namespace ofsdp::kernels::ops {
namespace {

struct Factors {
  float norm, keep, alpha, weight1, beta, weight2, rate, epsilon;
};

OFSDP_MULTIARCH void adam_span(const float* __restrict x, const float* __restrict grad,
                               const float* __restrict v, const float* __restrict h,
                               float* __restrict new_x, float* __restrict new_v,
                               float* __restrict new_h, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.norm * x[i] + grad[i];
    const float momentum = f.alpha * v[i] + f.weight1 * g;
    const float square = f.beta * h[i] + f.weight2 * (g * g);
    new_v[i] = momentum;
    new_h[i] = square;
    new_x[i] = f.keep * (x[i] - f.rate * momentum / (std::sqrt(square) + f.epsilon));
  }
}

double adjusted_rate(const TrainingAttributes& a, double rate, double updates) {
  if (updates <= 0) return rate;
  return rate * std::sqrt(1 - std::pow(a.beta, updates)) / (1 - std::pow(a.alpha, updates));
}

void update(const TrainingAttributes& a, const TrainingSpan<float>& s) {
  const auto f32 = [](double value) { return static_cast<float>(value); };
  const Factors f{f32(a.norm),
                  f32(1 - a.norm_post),
                  f32(a.alpha),
                  f32(1 - a.alpha),
                  f32(a.beta),
                  f32(1 - a.beta),
                  f32(adjusted_rate(a, s.rate, s.updates)),
                  f32(a.epsilon)};
  adam_span(s.in[0], s.in[1], s.in[2], s.in[3], s.out[0], s.out[1], s.out[2], s.count, f);
}

void reference(const TrainingAttributes& a, const TrainingSpan<double>& s) {
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = a.norm * s.in[0][i] + s.in[1][i];
    s.out[1][i] = a.alpha * s.in[2][i] + (1 - a.alpha) * g;
    s.out[2][i] = a.beta * s.in[3][i] + (1 - a.beta) * g * g;
    const double root = std::sqrt(s.out[2][i]) + a.epsilon;
    const double x = s.in[0][i] - adjusted_rate(a, s.rate, s.updates) * s.out[1][i] / root;
    s.out[0][i] = (1 - a.norm_post) * x;
  }
}

TrainingUpdate definition() {
  return {"Adam",
          2,
          update,
          reference,
          {{{"norm_coefficient", 0.01f}, {"alpha", 0.9f}, {"beta", 0.99f}, {"epsilon", 1e-4f}},
           {{"norm_coefficient_post", 0.05f}}}};
}

std::vector<RefTensor> whole_reference(const ReferenceContext& c) {
  return training_reference(definition(), c);
}

}  // namespace

void add_training_adam(Registry& registry) {
  registry.add(training_update(definition(), whole_reference));
}

}  // namespace ofsdp::kernels::ops
