// training_algorithm: the training that a command describes (loss, trained set, optimizer, rate) as
// the algorithm graph of a training_info, so that the model file says it itself. SGD with momentum,
// Adagrad and Adam without eps become operators of ai.onnx.preview.training; other optimizers
// become elementwise nodes. Schedules become nodes on the count of updates.
//
// Threads: any. Errors: kInput naming the flag that has no such form (label smoothing, a plug-in's
// loss or optimizer, --clip-grad-norm).
#pragma once

#include "importer/dialects/training_info/algorithm_builder.h"
#include "runtime/plan/model_setup.h"

namespace ofsdp::runtime {

// `decays`: per parameter of the graph. Gives what AlgorithmBuilder::finish does.
Result<std::string> training_algorithm(const Options& options, const ModelSetup& setup,
                                       const std::vector<bool>& decays);

}  // namespace ofsdp::runtime
