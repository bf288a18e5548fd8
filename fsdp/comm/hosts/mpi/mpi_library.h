// MpiEngine: what fsdp-run asks of an MPI library. libofsdp_mpi_openmpi.so and
// libofsdp_mpi_mpich.so each have one; they are loaded at run time, so that one program serves
// both, and hosts without MPI. Nothing of MPI's own types crosses this line, and the libraries are
// built with the program.
//
// Ownership: the caller deletes the engine. Threads: one at a time (MPI_THREAD_SERIALIZED). Errors:
// kFault with MPI's words. MPI 3.1 is enough.
#pragma once

#include "fsdp/comm/payload_engine.h"

namespace ofsdp::fsdp {

inline constexpr int kMpiLibraryVersion = 3;

class MpiEngine : public PayloadEngine {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Status broadcast(std::span<std::byte> bytes) = 0;  // from rank 0
};

}  // namespace ofsdp::fsdp

extern "C" {
int ofsdp_mpi_version();
// Starts MPI. Null: `error`, of `bytes` bytes, says why.
ofsdp::fsdp::MpiEngine* ofsdp_mpi_open(char* error, size_t bytes);
}
