// PayloadEngine moves bytes between ranks on different hosts over the cluster's own network, so
// that the connections of the rendezvous carry requests only. Without one, bytes follow the answer
// on the connection.
//
// MpiEngine is the engine of an MPI library. libofsdp_mpi_openmpi.so and libofsdp_mpi_mpich.so each
// define one (hosts/mpi/mpi_library.cpp) and are loaded at run time, so that one program serves
// both, and hosts without MPI. No type of MPI occurs here, and the libraries are built with the
// program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// Used by the link's thread. Errors: kFault, with the library's text.
class PayloadEngine {
 public:
  struct Done {
    bool sent;  // else received
    int peer;
    uint32_t id;
  };

  virtual ~PayloadEngine() = default;
  virtual std::string name() const = 0;
  // Begin a transfer; `id` is that of the receiver's request on both sides. A rank must begin to
  // receive before it sends the request. The bytes must stay until `progress` reports the transfer.
  virtual Status receive(int peer, uint32_t id, std::span<std::byte> dst) = 0;
  virtual Status send(int peer, uint32_t id, std::span<const std::byte> src) = 0;
  // Appends finished transfers to `done`.
  virtual Status progress(std::vector<Done>& done) = 0;
  // Forgets all transfers after a failure, without a word to other ranks. Only close() may follow.
  virtual void abandon() = 0;
  // REQUIRES: no transfer is under way.
  virtual void close(bool in_order) = 0;
};

// Calls must not overlap (MPI_THREAD_SERIALIZED). Needs MPI 3.1.
class MpiEngine : public PayloadEngine {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Status broadcast(std::span<std::byte> bytes) = 0;  // from rank 0
};

inline constexpr int kMpiLibraryVersion = 3;

}  // namespace ofsdp::fsdp

extern "C" {
int ofsdp_mpi_version();
// Starts MPI; the caller deletes the engine. Returns null if that fails, and writes the reason to
// `error`, at most `bytes` bytes.
ofsdp::fsdp::MpiEngine* ofsdp_mpi_open(char* error, size_t bytes);
}
