// Loads the values of a rank: constants, frozen parameters, weights and the optimizer's state, from
// the model file, from training artifacts, or from a checkpoint. Each rank reads only what it
// holds.
//
// Ownership: borrows all. Threads: one. Errors: kInput for a weight that cannot be read; the
// checkpoint's.
#pragma once

#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

// The trained state comes from `before` where it is given, else from the checkpoint, else from the
// model. REQUIRES: `before` has the same units, and its images are up to date.
Status load_values(const RankState& state, CheckpointReader* checkpoint,
                   const RankState* before = nullptr);

}  // namespace ofsdp::runtime
