// Finds weights that have become NaN before they are written or evaluated, so that no trained file
// or checkpoint is made that nobody can use. Only NaN counts: an infinity may be meant (a mask that
// is trained along, an unused score).
//
// Each rank looks through what it owns, once a save and at the end of a run; rank 0 also through
// its running statistics, which are the run's. A save that stages looks while it copies, since a
// pass of its own would be time in which the step waits. Of a device's weights the host's image is
// looked at: the caller fetches it. Threads: the one that trains; the pool helps check_weights.
// Errors: kFault with rank, step and the first such parameter.
#pragma once

#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

Status check_weights(const RankState& state, int64_t step);

// Copies, and returns whether a NaN was among the values.
bool copy_has_nan(float* to, const float* from, int64_t n);
Status nan_weights(const RankState& state, int parameter, int64_t step);

}  // namespace ofsdp::runtime
