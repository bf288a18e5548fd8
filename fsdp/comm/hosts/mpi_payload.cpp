#include "fsdp/comm/hosts/mpi_payload.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/base/own_folder.h"

namespace ofsdp::fsdp {
namespace {

Result<decltype(&ofsdp_mpi_open)> load(const RankIdentity& identity) {
  const std::string name = format_text("libofsdp_mpi_{}.so", identity.engine);
  std::string why;
  for (const std::string& path : own_library_paths(name)) {
    // Global, since MPI's own components are libraries that look for it.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      const char* const said = dlerror();
      if (why.empty() || access(path.c_str(), F_OK) == 0) why = said == nullptr ? "" : said;
      continue;
    }
    auto* const version =
        reinterpret_cast<decltype(&ofsdp_mpi_version)>(dlsym(handle, "ofsdp_mpi_version"));
    if (version != nullptr && version() == kMpiLibraryVersion) {
      return reinterpret_cast<decltype(&ofsdp_mpi_open)>(dlsym(handle, "ofsdp_mpi_open"));
    }
    why = format_text("{} is of another version of fsdp-run", path);
    break;
  }
  return input_error(
      "{} is missing, expected for ranks that {} started on several hosts: {}; or set MASTER_ADDR, "
      "MASTER_PORT and OFSDP_ENGINE=tcp",
      name, identity.started_by, why);
}

struct Place {  // of rank 0, for everybody
  int32_t port = 0;
  int32_t failed = 0;
  std::array<char[64], 8> addresses = {};
};

}  // namespace

Result<std::unique_ptr<MpiEngine>> open_mpi(const RankIdentity& identity) {
  OFSDP_ASSIGN_OR_RETURN(auto* const open, load(identity));
  char error[512] = "";
  std::unique_ptr<MpiEngine> mpi(open(error, sizeof error));
  if (!mpi) return fault("{}", error);
  if (mpi->rank() == identity.rank && mpi->size() == identity.world) return mpi;
  return input_error("{} says rank {} of {}, the environment of {} says rank {} of {}", mpi->name(),
                     mpi->rank(), mpi->size(), identity.started_by, identity.rank, identity.world);
}

Result<JobSecret> drawn_secret(MpiEngine& mpi) {
  std::string bytes = JobSecret::drawn().bytes();
  OFSDP_RETURN_IF_ERROR(mpi.broadcast(std::as_writable_bytes(std::span(bytes))));
  return JobSecret(std::move(bytes));
}

Result<RendezvousPoint> rendezvous_point(MpiEngine& mpi) {
  Place place;
  RendezvousPoint point;
  Status listens;
  if (mpi.rank() == 0) {
    point.addresses = own_addresses();
    point.addresses.push_back("127.0.0.1");  // a machine without a network
    const std::vector<std::string> addresses = listening_addresses(point);
    point.addresses.clear();
    auto listener = Listener::open(addresses, point.port);
    if (listener.ok()) point.listener = std::move(*listener);
    place.failed = point.listener.valid() ? 0 : 1;
    listens = std::move(listener).status();
    place.port = point.port;
    for (size_t i = 0; i < std::min(addresses.size(), place.addresses.size()); ++i) {
      std::strncpy(place.addresses[i], addresses[i].c_str(), sizeof place.addresses[i] - 1);
    }
  }
  OFSDP_RETURN_IF_ERROR(mpi.broadcast(std::as_writable_bytes(std::span(&place, 1))));
  OFSDP_RETURN_IF_ERROR(std::move(listens));
  if (place.failed != 0) return Status(ErrorKind::kPeer, "rank 0 cannot listen");
  point.port = place.port;
  for (const auto& address : place.addresses) {
    if (address[0] == 0) continue;
    point.addresses.emplace_back(address, strnlen(address, sizeof address));
  }
  return point;
}

}  // namespace ofsdp::fsdp
