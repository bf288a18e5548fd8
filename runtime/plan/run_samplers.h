// The samplers of a run: which samples of the training and of the evaluation data this rank takes.
//
// Ownership: fills in `plan`. Threads: any. Errors: kInput: what Sampler refuses, and batches that a
// graph with a fixed batch axis cannot take.
#pragma once

#include "fsdp/comm/communicator.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

Status settle_samplers(const Options& options, const ModelSetup& setup,
                       const Communicator& communicator, RunPlan& plan);

}  // namespace ofsdp::runtime
