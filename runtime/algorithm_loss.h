// The loss of a run as nodes of an algorithm graph; importer/loss.h says what each is. Gives the name
// of the scalar. Ownership: fills in the builder. Threads: any. Errors: kInput for what standard
// operators do not say (label smoothing, a plug-in's loss).
#pragma once

#include "importer/algorithm_builder.h"
#include "runtime/model_setup.h"

namespace ofsdp {

Result<std::string> write_loss(const ModelSetup& setup, AlgorithmBuilder& builder);

}  // namespace ofsdp
