// Adam (torch.optim.Adam), t the number of this update:
//   g += weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// https://arxiv.org/abs/1412.6980
#include "kernels/optimizers/adam_update.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

void update(const OptimizerSettings& settings, const OptimizerSpan<float>& span) {
  adam_update(settings, span, Decay::kGradient);
}

void reference(const OptimizerSettings& settings, const OptimizerSpan<double>& span) {
  adam_reference(settings, span, Decay::kGradient);
}

}  // namespace

OptimizerDef adam() { return {"adam", adam_states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
