// choose_plan: the plan of a run, where the user left something open or set a limit.
//
// --strategy auto: of the strategies, fastest first by the bytes a rank moves in an update, the first
// whose plan fits --memory-limit; without a limit the fastest. A plan that does not fit is refused
// before anything is allocated, with what would fit: the same run with activations computed again,
// under another strategy, with a smaller batch. All ranks decide alike: what rank 0 alone holds counts
// on all of them.
//
// Ownership: as RunPlan. Threads: one. Errors: kInput for what RunPlan::make refuses and for a plan
// over the limit.
#pragma once

#include "runtime/run_plan.h"

namespace ofsdp {

Result<std::unique_ptr<RunPlan>> choose_plan(const Options& options, const ModelSetup& setup,
                                             const Communicator& communicator,
                                             const std::vector<OptimizerDef>& optimizers,
                                             Device* device = nullptr);

// What a rank moves in an update with `parameters` of one byte each (so: passes over them), of one
// host: gathers, the reduction, and the update of what it owns with `states` tensors.
double bytes_moved(Strategy strategy, int world, int64_t grad_accum, int states);

}  // namespace ofsdp
