// The loss of a run as nodes of an algorithm graph; importer/passes/loss.h says what each is. Gives the name
// of the scalar. Ownership: fills in the builder. Threads: any. Errors: kInput for what standard
// operators do not say (label smoothing, a plug-in's loss).
#pragma once

#include "importer/dialects/training_info/algorithm_builder.h"
#include "runtime/plan/model_setup.h"

namespace ofsdp::runtime {

Result<std::string> write_loss(const ModelSetup& setup, AlgorithmBuilder& builder);

}  // namespace ofsdp::runtime
