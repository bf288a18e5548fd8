// Weights that have become NaN, found before they are written or evaluated: a trained file or a
// checkpoint that nobody can use is never made. NaN alone: an infinity may be meant (a mask that is
// trained along, an unused score).
//
// Each rank looks through what it owns, once a save and at the end of a run; rank 0 through the
// running statistics too, which are its own. A save that stages looks while it copies, since a pass of
// its own would be time in which the step waits. Of a device's weights the host's image is looked at:
// the caller fetches it. Threads: the one that trains; the pool helps `check_weights`. Errors: kFault
// with rank, step and the first such parameter.
#pragma once

#include "runtime/state/run_state.h"

namespace ofsdp::runtime {

Status check_weights(const RunPlan& plan, RunState& state, int rank, int64_t step);

// Copies, and says whether a NaN went along.
bool copy_has_nan(float* to, const float* from, int64_t n);
Status nan_weights(const RunState& state, int parameter, int rank, int64_t step);

}  // namespace ofsdp::runtime
