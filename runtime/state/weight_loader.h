// Loads the values of a rank: constants, frozen parameters, weights and the optimizer's state, from
// the model file, from training artifacts, or from a checkpoint. Each rank reads only what it
// holds.
//
// Ownership: borrows all. Threads: one. Errors: kInput for a weight that cannot be read; the
// checkpoint's.
#pragma once

#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

// `checkpoint`: null for the model's own weights.
Status load_values(const RankState& state, CheckpointReader* checkpoint);

}  // namespace ofsdp::runtime
