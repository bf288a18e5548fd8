// ai.onnx.preview.training.Momentum, with t updates done before this one:
//   g += norm_coefficient x;  v' = alpha v + (t > 0 ? beta : 1) g
//   x' = x - R v', or with mode nesterov x - R (g + alpha v')
// https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Momentum.html
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/training/training_update.h"

namespace ofsdp::kernels::ops {
namespace {

struct Factors {
  float norm, alpha, beta, rate;
  bool nesterov;
};

OFSDP_MULTIARCH void momentum_span(const float* __restrict x, const float* __restrict grad,
                                   const float* __restrict v, float* __restrict new_x,
                                   float* __restrict new_v, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.norm * x[i] + grad[i];
    const float momentum = f.alpha * v[i] + f.beta * g;
    new_v[i] = momentum;
    new_x[i] = x[i] - f.rate * (f.nesterov ? g + f.alpha * momentum : momentum);
  }
}

void update(const TrainingAttributes& a, const TrainingSpan<float>& s) {
  const Factors f{static_cast<float>(a.norm), static_cast<float>(a.alpha),
                  static_cast<float>(s.updates > 0 ? a.beta : 1), static_cast<float>(s.rate),
                  a.nesterov};
  momentum_span(s.in[0], s.in[1], s.in[2], s.out[0], s.out[1], s.count, f);
}

void reference(const TrainingAttributes& a, const TrainingSpan<double>& s) {
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = a.norm * s.in[0][i] + s.in[1][i];
    const double v = a.alpha * s.in[2][i] + (s.updates > 0 ? a.beta : 1) * g;
    s.out[1][i] = v;
    s.out[0][i] = s.in[0][i] - s.rate * (a.nesterov ? g + a.alpha * v : v);
  }
}

Attributes attributes(const char* mode) {
  return {
      {"norm_coefficient", 0.01f}, {"alpha", 0.95f}, {"beta", 0.85f}, {"mode", std::string(mode)}};
}

TrainingUpdate definition() {
  return {"Momentum", 1, update, reference, {attributes("standard"), attributes("nesterov")}};
}

std::vector<RefTensor> whole_reference(const ReferenceContext& c) {
  return training_reference(definition(), c);
}

}  // namespace

void add_training_momentum(Registry& registry) {
  registry.add(training_update(definition(), whole_reference));
}

}  // namespace ofsdp::kernels::ops
