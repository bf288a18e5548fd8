// What fsdp-run asks of an MPI library: the table that libofsdp_mpi_openmpi.so and
// libofsdp_mpi_mpich.so export. The libraries are loaded at run time, so that one program serves
// both, and hosts without MPI; nothing of MPI's own types crosses this line.
//
// All calls return 0, or a count, or -1 with a line in `error`. Ownership: `open` makes the state,
// `close` ends it. Threads: one at a time (MPI_THREAD_SERIALIZED). MPI 3.1 is enough.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ofsdp::fsdp {

inline constexpr int kMpiTableVersion = 1;
inline constexpr int kMpiErrorBytes = 256;

struct MpiError {
  char text[kMpiErrorBytes];
};

struct MpiTable {
  int version;
  const char* (*library)();  // "Open MPI 4.1.4"
  void* (*open)(int* rank, int* size, MpiError* error);
  int (*broadcast)(void* state, void* bytes, size_t count, MpiError* error);  // from rank 0
  // `ticket` comes back from progress when the bytes are there, or may be used again.
  int (*receive)(void* state, void* bytes, size_t count, int peer, int tag, uint64_t ticket,
                 MpiError* error);
  int (*send)(void* state, const void* bytes, size_t count, int peer, int tag, uint64_t ticket,
              MpiError* error);
  int (*progress)(void* state, uint64_t* tickets, int most, MpiError* error);
  void (*close)(void* state, int in_order);  // in order: all ranks do
};

}  // namespace ofsdp::fsdp

extern "C" const ofsdp::fsdp::MpiTable* ofsdp_mpi_table();
