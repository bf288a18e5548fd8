// training_algorithm: what a training command says - loss, trained set, optimizer, rate - as the
// algorithm graph of a training_info (importer/dialects/training_info/algorithm_builder.h), so that the model file says it
// itself. Optimizers become operators of ai.onnx.preview.training where these are the same (SGD with
// momentum, Adagrad, Adam without eps), else elementwise nodes; schedules become nodes on the count
// of updates.
//
// Ownership: values. Threads: any. Errors: kInput naming the flag that has no such form.
#pragma once

#include "importer/dialects/training_info/algorithm_builder.h"
#include "runtime/plan/model_setup.h"

namespace ofsdp::runtime {

// `decays`: per parameter of the graph. Gives what AlgorithmBuilder::finish does.
Result<std::string> training_algorithm(const Options& options, const ModelSetup& setup,
                                       const std::vector<bool>& decays);

}  // namespace ofsdp::runtime
