// ai.onnx.preview.training.Adagrad, with t updates done before this one:
//   g += norm_coefficient x;  h' = h + g^2
//   x' = x - R / (1 + t decay_factor) g / (sqrt(h') + epsilon)
// https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adagrad.html
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/training/training_update.h"

namespace ofsdp::kernels::ops {
namespace {

struct Factors {
  float norm, rate, epsilon;
};

OFSDP_MULTIARCH void adagrad_span(const float* __restrict x, const float* __restrict grad,
                                  const float* __restrict h, float* __restrict new_x,
                                  float* __restrict new_h, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.norm * x[i] + grad[i];
    const float sum = h[i] + g * g;
    new_h[i] = sum;
    new_x[i] = x[i] - f.rate * g / (std::sqrt(sum) + f.epsilon);
  }
}

void update(const TrainingAttributes& a, const TrainingSpan<float>& s) {
  const Factors f{static_cast<float>(a.norm),
                  static_cast<float>(s.rate / (1 + s.updates * a.decay)),
                  static_cast<float>(a.epsilon)};
  adagrad_span(s.in[0], s.in[1], s.in[2], s.out[0], s.out[1], s.count, f);
}

void reference(const TrainingAttributes& a, const TrainingSpan<double>& s) {
  const double rate = s.rate / (1 + s.updates * a.decay);
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = a.norm * s.in[0][i] + s.in[1][i];
    s.out[1][i] = s.in[2][i] + g * g;
    s.out[0][i] = s.in[0][i] - rate * g / (std::sqrt(s.out[1][i]) + a.epsilon);
  }
}

TrainingUpdate definition() {
  return {"Adagrad",
          1,
          update,
          reference,
          {{{"norm_coefficient", 0.01f}, {"epsilon", 1e-5f}, {"decay_factor", 0.1f}}, {}}};
}

std::vector<RefTensor> whole_reference(const ReferenceContext& c) {
  return training_reference(definition(), c);
}

}  // namespace

void add_training_adagrad(Registry& registry) {
  registry.add(training_update(definition(), whole_reference));
}

}  // namespace ofsdp::kernels::ops
