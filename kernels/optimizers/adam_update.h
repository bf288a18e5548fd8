// What Adam and AdamW share: everything but where the weight decay goes.
//
// Owns: views only. Threads: the one that runs the schedule. Elementwise; see
// kernels/core/optimizer.h.
#pragma once

#include "kernels/core/optimizer.h"

namespace ofsdp::kernels::optimizers {

enum class Decay { kGradient, kDecoupled };  // Adam, AdamW

std::vector<std::string> adam_states(const OptimizerSettings& settings);
void adam_update(const OptimizerSettings& settings, const OptimizerSpan<float>& span, Decay decay);
void adam_reference(const OptimizerSettings& settings, const OptimizerSpan<double>& span,
                    Decay decay);

}  // namespace ofsdp::kernels::optimizers
