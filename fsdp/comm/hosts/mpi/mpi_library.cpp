// libofsdp_mpi_*.so: built once for each MPI library that the machine has (fsdp/CMakeLists.txt).
#include "fsdp/comm/hosts/mpi/mpi_library.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

using ofsdp::fsdp::MpiError;

struct State {
  MPI_Comm world = MPI_COMM_NULL;
  std::vector<MPI_Request> requests;
  std::vector<uint64_t> tickets;
  std::vector<int> done;
};

int fine(int code, MpiError* error) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  int bytes = 0;
  MPI_Error_string(code, text, &bytes);
  const size_t length = std::min(std::strlen(text), sizeof error->text - 1);
  std::memcpy(error->text, text, length);
  error->text[length] = 0;
  return -1;
}

const char* library() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int bytes = 0;
  MPI_Get_library_version(text, &bytes);
  text[std::strcspn(text, ",\n")] = 0;
  return text;
}

void* open(int* rank, int* size, MpiError* error) {
  int provided = 0;
  if (fine(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), error) != 0) {
    return nullptr;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    std::snprintf(error->text, sizeof error->text, "it offers no MPI_THREAD_SERIALIZED");
    return nullptr;
  }
  auto* state = new State;
  if (fine(MPI_Comm_dup(MPI_COMM_WORLD, &state->world), error) != 0) return nullptr;
  MPI_Comm_set_errhandler(state->world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(state->world, rank);
  MPI_Comm_size(state->world, size);
  return state;
}

int broadcast(void* state, void* bytes, size_t count, MpiError* error) {
  auto* mine = static_cast<State*>(state);
  return fine(MPI_Bcast(bytes, static_cast<int>(count), MPI_BYTE, 0, mine->world), error);
}

int keep(State* state, MPI_Request request, uint64_t ticket) {
  state->requests.push_back(request);
  state->tickets.push_back(ticket);
  return 0;
}

int receive(void* state, void* bytes, size_t count, int peer, int tag, uint64_t ticket,
            MpiError* error) {
  auto* mine = static_cast<State*>(state);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Irecv(bytes, static_cast<int>(count), MPI_BYTE, peer, tag, mine->world, &request);
  return fine(code, error) != 0 ? -1 : keep(mine, request, ticket);
}

int send(void* state, const void* bytes, size_t count, int peer, int tag, uint64_t ticket,
         MpiError* error) {
  auto* mine = static_cast<State*>(state);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, peer, tag, mine->world, &request);
  return fine(code, error) != 0 ? -1 : keep(mine, request, ticket);
}

int progress(void* state, uint64_t* tickets, int most, MpiError* error) {
  auto* mine = static_cast<State*>(state);
  auto& requests = mine->requests;
  if (requests.empty()) return 0;
  mine->done.resize(requests.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                mine->done.data(), MPI_STATUSES_IGNORE);
  if (fine(code, error) != 0) return -1;
  if (count == MPI_UNDEFINED || count == 0) return 0;
  int given = 0;
  size_t kept = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] == MPI_REQUEST_NULL && given < most) {
      tickets[given++] = mine->tickets[i];
      continue;
    }
    requests[kept] = requests[i];
    mine->tickets[kept++] = mine->tickets[i];
  }
  requests.resize(kept);
  mine->tickets.resize(kept);
  return given;
}

void close(void* state, int in_order) {
  auto* mine = static_cast<State*>(state);
  if (in_order != 0) {
    for (MPI_Request& request : mine->requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    MPI_Comm_free(&mine->world);
    MPI_Finalize();
  }
  delete mine;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const ofsdp::fsdp::MpiTable* ofsdp_mpi_table() {
  static const ofsdp::fsdp::MpiTable table = {
      ofsdp::fsdp::kMpiTableVersion, library, open, broadcast, receive, send, progress, close};
  return &table;
}
