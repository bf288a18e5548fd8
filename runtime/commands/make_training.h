// fsdp-run make-training: the training that a command says, written into a model file for others to
// look at, check and run.
//
//   training_info  the model with a training_info: loss, Gradient, optimizer; fsdp-run trains it
//   graph          forward, loss and backward in standard operators, for one batch size, with the
//                  gradients as outputs PARAM_grad; operators of our own are functions in the file
//
// Takes the options of a training run; data are opened for their shapes alone. Ownership:
// everything lives in the call. Threads: one; one process. Errors: kInput; kFault (disk).
#pragma once

#include "kernels/core/registry.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

Status make_training(const Options& options, const ModelOrigin& origin, const Registry& registry);

}  // namespace ofsdp::runtime
