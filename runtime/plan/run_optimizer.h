// Which optimizer a run has, with which numbers, and what of it each parameter has: weight decay, or
// the rule of a model with a training_info.
//
// Ownership: fills in `run`, whose optimizer points into `optimizers` or the source. Threads: any.
// Errors: kInput naming the flag.
#pragma once

#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

Status settle_optimizer(const OptimizerOptions& options, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, RunPlan& run);

// What a device needs to follow a training_info itself: `run` has its units. kInput for a node without
// a kernel of the device.
Status settle_device_rules(const ModelSetup& setup, int rank, RunPlan& run);

// Which parameters of the graph have weight decay. kInput for a pattern that matches none.
Result<std::vector<bool>> weight_decays(const OptimizerOptions& options, const Graph& graph);

}  // namespace ofsdp::runtime
