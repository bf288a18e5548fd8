// libofsdp_mpi_*.so, built for each MPI library on the machine (fsdp/CMakeLists.txt).
#include "fsdp/comm/communicator.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace ofsdp::fsdp {
namespace {

constexpr int kTags = 1 << 15;      // the least that MPI guarantees
constexpr size_t kMaxReports = 64;  // of one call of progress

std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int bytes = 0;
  MPI_Get_library_version(text, &bytes);
  text[std::strcspn(text, ",\n")] = 0;
  return text;
}

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int bytes = 0;
  MPI_Error_string(code, text, &bytes);
  return text;
}

Status status_of(int code) {
  if (code == MPI_SUCCESS) return {};
  return {ErrorKind::kFault, library_name() + ": " + error_text(code)};
}

class Engine final : public MpiEngine {
 public:
  explicit Engine(MPI_Comm world) : world_(world) {
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &size_);
  }

  std::string name() const override { return library_name(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status broadcast(std::span<std::byte> bytes) override {
    return status_of(MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, world_));
  }

  Status receive(int peer, uint32_t id, std::span<std::byte> dst) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Irecv(dst.data(), static_cast<int>(dst.size()), MPI_BYTE, peer, tag(id),
                               world_, &request);
    return keep(code, request, {false, peer, id});
  }

  Status send(int peer, uint32_t id, std::span<const std::byte> src) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(src.data(), static_cast<int>(src.size()), MPI_BYTE, peer, tag(id),
                               world_, &request);
    return keep(code, request, {true, peer, id});
  }

  Status progress(std::vector<Done>& done) override {
    if (requests_.empty()) return {};
    indices_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) return status_of(code);
    if (count == MPI_UNDEFINED || count == 0) return {};
    size_t kept = 0, given = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL && given < kMaxReports) {
        done.push_back(tickets_[i]);
        ++given;
        continue;
      }
      requests_[kept] = requests_[i];
      tickets_[kept++] = tickets_[i];
    }
    requests_.resize(kept);
    tickets_.resize(kept);
    return {};
  }

  // Does not call MPI: any call may continue the transfers, and a read from the memory of a dead
  // rank would end this process before it has reported the failure.
  void abandon() override {
    requests_.clear();
    tickets_.clear();
  }

  // After a failure the other ranks do not finalize, so this one must not wait for them.
  void close(bool in_order) override {
    if (!in_order || world_ == MPI_COMM_NULL) return;
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    abandon();
    MPI_Comm_free(&world_);
    MPI_Finalize();
  }

 private:
  static int tag(uint32_t id) { return static_cast<int>(id % kTags); }

  Status keep(int code, MPI_Request request, Done ticket) {
    if (code != MPI_SUCCESS) return status_of(code);
    requests_.push_back(request);
    tickets_.push_back(ticket);
    return {};
  }

  MPI_Comm world_;
  int rank_ = 0, size_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Done> tickets_;  // the report of each request
  std::vector<int> indices_;
};

MpiEngine* open(std::string& why) {
  int provided = 0;
  MPI_Comm world = MPI_COMM_NULL;
  int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED) {
    why = "it offers no MPI_THREAD_SERIALIZED";
    return nullptr;
  }
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &world);
  if (code == MPI_SUCCESS) return new Engine(world);
  why = error_text(code);
  return nullptr;
}

}  // namespace
}  // namespace ofsdp::fsdp

#define OFSDP_EXPORTED extern "C" __attribute__((visibility("default")))

OFSDP_EXPORTED int ofsdp_mpi_version() { return ofsdp::fsdp::kMpiLibraryVersion; }

OFSDP_EXPORTED ofsdp::fsdp::MpiEngine* ofsdp_mpi_open(char* error, size_t bytes) {
  std::string why;
  ofsdp::fsdp::MpiEngine* engine = ofsdp::fsdp::open(why);
  if (engine == nullptr) {
    std::snprintf(error, bytes, "%s does not start: %s", ofsdp::fsdp::library_name().c_str(),
                  why.c_str());
  }
  return engine;
}
