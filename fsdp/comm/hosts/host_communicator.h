// The communicator of ranks on several hosts. Inside a host ranks share memory and a control page as
// the local communicator's do; between hosts each rank has a HostLink, which asks and answers with a
// thread of its own, so that a reduction's transfers run from its post on, beside the computation.
//
// Every byte of a gather comes to a host once, and of a reduction one sum leaves it
// (host_gather.h, host_reductions.h): the hierarchical collectives of Thakur, Rabenseifner, Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005, section on SMP clusters, with
// requests instead of a schedule of messages.
//
// Ownership and threads: as communicator.h says; two threads of its own, the link's and the one that
// watches the ranks of the host. leave() waits until every rank has left, since others may still
// read this rank's shards. Errors: those of host_meeting.h, rendezvous.h and communicator.h.
#pragma once

#include <chrono>
#include <memory>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_meeting.h"
#include "fsdp/comm/hosts/payload_engine.h"

namespace ofsdp::fsdp {

// `engine`: null for the connections of the meeting themselves.
Result<std::unique_ptr<Communicator>> connect_hosts(const RankIdentity& identity,
                                                    MeetingPoint point,
                                                    std::unique_ptr<PayloadEngine> engine,
                                                    std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
