// The one way to a communicator: `self` for one rank, `local` for ranks of one host, and for
// several hosts the one of host_communicator.h.
//
// Ownership: the caller's. Threads: one. Errors: those of the communicator that it makes; kInput
// where several hosts have nowhere to meet.
#pragma once

#include <chrono>
#include <memory>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"

namespace ofsdp::fsdp {

Result<std::unique_ptr<Communicator>> connect_ranks(const RankIdentity& started,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
