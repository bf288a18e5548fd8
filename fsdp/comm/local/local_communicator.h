// The communicator of ranks that share a host: one process a rank, memory shared by anonymous
// segments, signals by counters in a control page. Peers' slots are read where they lie; nothing is
// copied but what the caller asked for.
//
// Takes the identity that the environment gave (rank_identity.h) and the time a rank may be late,
// here and in every collective. A world of one gives the `self` communicator.
//
// Ownership and threads: as communicator.h says. The communicator has one thread of its own, which
// sleeps until a rank dies. A communicator that is destroyed without leave() or fail() counts as
// dead. Errors: those of rendezvous.h and communicator.h.
#pragma once

#include <chrono>
#include <memory>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

Result<std::unique_ptr<Communicator>> connect_local(const RankIdentity& identity,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
