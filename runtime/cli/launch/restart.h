// What a rank does otherwise when its launcher has started it again: it goes on from the latest
// checkpoint of its run, and keeps the global batch when there are fewer ranks than at first.
//
// The launcher says so in the environment (OFSDP_RESTART, OFSDP_FIRST_WORLD). With fewer ranks the
// batch of a rank becomes the largest, not above the one asked for, that divides the global batch,
// so that the planned memory still holds; more accumulation makes up for it.
//
// Ownership: values. Threads: any, while nobody changes the environment. Errors: kInput when the
// global batch is no multiple of the ranks.
#pragma once

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::cli {

Status apply_restart(Options& options, int world, const EnvironmentLookup& lookup = {});

}  // namespace ofsdp::cli
