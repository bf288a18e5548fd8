// Writes the trained model in the form in which it was read: each rank writes its own share of each
// unit, rank 0 the running statistics. No rank ever holds the whole model. Collective. Errors:
// kInput if the path cannot be written, kFault from the disk.
#pragma once

#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

Status write_trained(RankState& state, Communicator& communicator, const std::string& path,
                     const TrainedState& trained);

// Finds NaN weights before they are saved or evaluated. Infinity is allowed: it may be meant (a
// trained mask, an unused score).
//
// Each rank checks the weights that it owns, once a save and at the end of a run; rank 0 also
// checks the running statistics. A save that stages checks while it copies, since the step waits
// for it. With a device, the caller must fetch the host image first. Called by the training thread;
// the thread pool helps check_weights. Returns kFault with rank, step and the first such parameter.

Status check_weights(const RankState& state, int64_t step);

// Copies `n` values and returns true if one was NaN.
bool copy_has_nan(float* to, const float* from, int64_t n);
Status nan_weights(const RankState& state, int parameter, int64_t step);

}  // namespace ofsdp::runtime
