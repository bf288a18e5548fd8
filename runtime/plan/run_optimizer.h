// Chooses the optimizers of a run, their numbers, and for each parameter its group and its weight
// decay, or the rule of a model with a training_info.
//
// Ownership: fills in `run`, whose optimizer points into `optimizers` or the source. Threads: any.
// Errors: kInput naming the flag.
#pragma once

#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

Status choose_optimizer(const RunSettings& settings, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, RunPlan& run);

// Plans how a device follows a training_info itself: `run` has its units. kInput for a node without
// a kernel of the device.
Status plan_device_rules(const ModelSetup& setup, int rank, RunPlan& run);

// Returns which parameters of the graph have weight decay. kInput for a pattern that matches none.
Result<std::vector<bool>> weight_decays(const OptimizerOptions& options, const Graph& graph);

}  // namespace ofsdp::runtime
