// AdamW (torch.optim.AdamW): p *= 1 - lr weight_decay, then Adam without weight decay.
// https://arxiv.org/abs/1711.05101
#include "kernels/optimizers/adam_update.h"
#include "kernels/optimizers/list.h"

namespace ofsdp::kernels::optimizers {
namespace {

void update(const OptimizerSettings& settings, const OptimizerSpan<float>& span) {
  adam_update(settings, span, Decay::kDecoupled);
}

void reference(const OptimizerSettings& settings, const OptimizerSpan<double>& span) {
  adam_reference(settings, span, Decay::kDecoupled);
}

}  // namespace

OptimizerDef adamw() { return {"adamw", adam_states, update, reference}; }

}  // namespace ofsdp::kernels::optimizers
