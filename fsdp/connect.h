// connect_ranks makes the communicator of a run. If it has one rank, that is `self`; otherwise it
// is one for several processes, on one host or on several.
//
// Ranks on one host share anonymous memory segments, and a control page with counters for signals.
// They read the slots of their peers in place; nothing is copied unless the caller asks for a copy.
// Between hosts each rank has a HostLink with a thread, so that the transfers of a reduction begin
// with the post and run while the rank computes.
//
// Every byte of a gather comes to a host once, and one sum of a reduction leaves it
// (host_collectives.h): the hierarchical collectives of Thakur, Rabenseifner, Gropp, "Optimization
// of Collective Communication Operations in MPICH", 2005, section on SMP clusters, with requests
// instead of a schedule of messages.
//
// A communicator has a thread that sleeps until a rank on the host dies. If it is destroyed without
// leave() or fail(), it counts as dead. With several hosts leave() waits for every rank to leave,
// at most the timeout, since others may still read this rank's shards.
#pragma once

#include <chrono>
#include <memory>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"

namespace ofsdp::fsdp {

// Connects this rank with the others: with processes on one host by shared memory, on several hosts
// also by TCP or MPI. A rank may be late by `timeout`, here and in every collective. Returns kInput
// if ranks on several hosts have no address to meet at, or the errors of the rendezvous
// (host_rendezvous.h, rendezvous.h).
Result<std::unique_ptr<Communicator>> connect_ranks(const RankIdentity& started,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
