// The MPI of the launcher: where rank 0 can be met without MASTER_ADDR, and the engine that carries
// payloads (payload_engine.h).
//
// The library is chosen by who started the ranks (RankIdentity::engine) and loaded from the folder
// of the program, or from one folder above (tests), or from where the system finds libraries.
//
// MPI makes no progress by itself, so the link's thread drives it, and only while bytes are on
// their way: requests come over the connections of the rendezvous, on which it sleeps.
//
// Ownership: the library stays loaded until the process ends. Threads: one at a time. Errors:
// kInput when the library is not there, kFault with MPI's words.
#pragma once

#include <memory>

#include "fsdp/comm/hosts/mpi/mpi_library.h"
#include "fsdp/comm/hosts/rendezvous_point.h"
#include "fsdp/comm/rank_identity.h"

namespace ofsdp::fsdp {

Result<std::unique_ptr<MpiEngine>> open_mpi(const RankIdentity& identity);

// A secret that rank 0 draws, for a job without one of its own: MPI has told the ranks apart from
// strangers already.
Result<JobSecret> drawn_secret(MpiEngine& mpi);

// Rank 0 listens, and MPI tells the others where.
Result<RendezvousPoint> rendezvous_point(MpiEngine& mpi);

}  // namespace ofsdp::fsdp
