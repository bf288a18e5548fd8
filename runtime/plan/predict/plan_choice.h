// choose_plan: the plan of a run, where the user left something open or set a limit.
//
// --strategy auto: of the strategies whose plans fit --memory-limit, the one with the fastest
// predicted update (prediction.h); hybrid ones are among them where --topology names several
// hosts. A plan that does not fit is refused before anything is allocated, with what would fit: the
// same run with activations computed again, under another strategy, with a smaller batch. All ranks
// decide alike: what rank 0 alone holds counts on all of them, and rank 0 measures for all.
//
// Ownership: as RunPlan. Threads: one. Errors: kInput for what RunPlan::make refuses and for a plan
// over the limit.
#pragma once

#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

Result<std::unique_ptr<RunPlan>> choose_plan(const RunSettings& settings, const ModelSetup& setup,
                                             Communicator& communicator,
                                             const std::vector<OptimizerDef>& optimizers,
                                             Device* device = nullptr);

}  // namespace ofsdp::runtime
