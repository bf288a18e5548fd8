// The manifest of a run's checkpoints, and the way back: what a run must have in common with a
// checkpoint to resume it, and loading the elements that this rank holds, whoever saved them.
//
// Ownership: borrows all. Threads: one. Errors: the reader's; kInput from check_resumable naming
// what differs.
#pragma once

#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

// All of the manifest that is the same for every save of a run.
Manifest describe_run(const Options& options, const RunPlan& plan, const ModelSetup& setup);

// Whether this run can go on from that checkpoint: the same graph, teacher, trained set and
// optimizer; the same graph alone if it only evaluates it.
Status check_resumable(const Manifest& manifest, const RunPlan& plan, const ModelSetup& setup);

Status load_checkpoint(CheckpointReader& reader, const RankState& state);

}  // namespace ofsdp::runtime
