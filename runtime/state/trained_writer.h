// The trained model in the form in which it was read: each rank writes its own share of each unit,
// and rank 0 the running statistics. No rank ever has the whole model.
//
// Ownership: borrows all. Threads: one. Collective. Errors: kInput for a path that cannot be
// written, kFault for the disk.
#pragma once

#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

Status write_trained(RankState& state, Communicator& communicator, const std::string& path,
                     const TrainedState& trained);

}  // namespace ofsdp::runtime
