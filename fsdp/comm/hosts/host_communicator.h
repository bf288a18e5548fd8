// The communicator of several processes, on one host or on several.
//
// Inside a host ranks share memory, by anonymous segments, and a control page whose counters are
// their signals. Peers' slots are read where they are; nothing is copied but what the caller asked
// for. Between hosts each rank has a HostLink, which asks and answers with a thread of its own, so
// that a reduction's transfers run from its post on, next to the computation.
//
// Every byte of a gather comes to a host once, and of a reduction one sum leaves it
// (host_gather.h, host_reductions.h): the hierarchical collectives of Thakur, Rabenseifner, Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005, section on SMP clusters,
// with requests instead of a schedule of messages.
//
// Ownership and threads: as communicator.h says; a thread of its own that sleeps until a rank of
// the host dies, and with several hosts the link's. A communicator that is destroyed without
// leave() or fail() counts as dead. With several hosts leave() waits until every rank has left, no
// longer than the timeout, since others may still read this rank's shards. Errors: those of
// host_rendezvous.h, rendezvous.h and communicator.h.
#pragma once

#include <chrono>
#include <memory>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/payload_engine.h"

namespace ofsdp::fsdp {

// Ranks of one host, as the environment told them. `timeout`: how late a rank may be, here and in
// every collective. A world of one gives the `self` communicator.
Result<std::unique_ptr<Communicator>> connect_local(const RankIdentity& identity,
                                                    std::chrono::seconds timeout);

// Ranks of several hosts. `engine`: null for the connections of the meeting themselves.
Result<std::unique_ptr<Communicator>> connect_hosts(const RankIdentity& identity,
                                                    RendezvousPoint point,
                                                    std::unique_ptr<PayloadEngine> engine,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
