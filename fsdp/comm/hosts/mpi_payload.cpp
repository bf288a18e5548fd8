#include "fsdp/comm/hosts/mpi_payload.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "fsdp/comm/hosts/host_meeting_wire.h"

namespace ofsdp::fsdp {
namespace {

constexpr int kTags = 1 << 15;  // every MPI has so many

// A request's receiver, its number, and which end this is.
uint64_t ticket_of(bool sent, int peer, uint32_t id) {
  return uint64_t{sent} << 63 | static_cast<uint64_t>(peer) << 32 | id;
}

Result<const MpiTable*> load(const RankIdentity& identity) {
  const std::string name = format_text("libofsdp_mpi_{}.so", identity.engine);
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = program.parent_path();
  std::string why;
  for (const std::string& path :
       {(folder / name).string(), (folder.parent_path() / name).string(), name}) {
    // Global, since MPI's own components are libraries that look for it.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      const char* const said = dlerror();
      if (why.empty() || access(path.c_str(), F_OK) == 0) why = said == nullptr ? "" : said;
      continue;
    }
    auto* const table = reinterpret_cast<const MpiTable* (*)()>(dlsym(handle, "ofsdp_mpi_table"));
    if (table != nullptr && table()->version == kMpiTableVersion) return table();
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

Status MpiPayload::failed(const MpiError& error) const {
  return fault("{}: {}", table_->library(), error.text);
}

Result<std::unique_ptr<MpiPayload>> MpiPayload::open(const RankIdentity& identity) {
  OFSDP_ASSIGN_OR_RETURN(const MpiTable* table, load(identity));
  int rank = 0, size = 0;
  MpiError error{};
  void* const state = table->open(&rank, &size, &error);
  if (state == nullptr) return fault("{} does not start: {}", table->library(), error.text);
  std::unique_ptr<MpiPayload> payload(new MpiPayload(table, state));
  if (rank != identity.rank || size != identity.world) {
    return input_error("{} says rank {} of {}, the environment of {} says rank {} of {}",
                       table->library(), rank, size, identity.started_by, identity.rank,
                       identity.world);
  }
  return payload;
}

MpiPayload::~MpiPayload() { close(false); }

void MpiPayload::close(bool in_order) {
  if (state_ != nullptr) table_->close(std::exchange(state_, nullptr), in_order ? 1 : 0);
}

Status MpiPayload::receive(int peer, uint32_t id, std::span<std::byte> dst) {
  MpiError error{};
  const int code =
      table_->receive(state_, dst.data(), dst.size(), peer, static_cast<int>(id % kTags),
                      ticket_of(false, peer, id), &error);
  return code == 0 ? Status{} : failed(error);
}

Status MpiPayload::send(int peer, uint32_t id, std::span<const std::byte> src) {
  MpiError error{};
  const int code = table_->send(state_, src.data(), src.size(), peer, static_cast<int>(id % kTags),
                                ticket_of(true, peer, id), &error);
  return code == 0 ? Status{} : failed(error);
}

Status MpiPayload::progress(std::vector<Done>& done) {
  std::array<uint64_t, 64> tickets;
  MpiError error{};
  const int count =
      table_->progress(state_, tickets.data(), static_cast<int>(tickets.size()), &error);
  if (count < 0) return failed(error);
  for (int i = 0; i < count; ++i) {
    const uint64_t ticket = tickets[static_cast<size_t>(i)];
    done.push_back({ticket >> 63 != 0, static_cast<int>(ticket >> 32 & 0x7fffffff),
                    static_cast<uint32_t>(ticket)});
  }
  return {};
}

Result<MeetingPoint> MpiPayload::meeting_point(const RankIdentity& identity) {
  Place place;
  MeetingPoint point;
  Status listens;
  if (identity.rank == 0) {
    auto listener = listen_on(point.port);
    if (listener.ok()) point.listener = std::move(*listener);
    place.failed = point.listener.valid() ? 0 : 1;
    listens = std::move(listener).status();
    place.port = point.port;
    auto addresses = own_addresses();
    addresses.push_back("127.0.0.1");  // a machine without a network
    for (size_t i = 0; i < std::min(addresses.size(), place.addresses.size()); ++i) {
      put_text(place.addresses[i], addresses[i]);
    }
  }
  MpiError error{};
  if (table_->broadcast(state_, &place, sizeof place, &error) != 0) return failed(error);
  OFSDP_RETURN_IF_ERROR(std::move(listens));
  if (place.failed != 0) return Status(ErrorKind::kPeer, "rank 0 cannot listen");
  point.port = place.port;
  for (const auto& address : place.addresses) {
    if (address[0] != 0) point.addresses.push_back(get_text(address));
  }
  return point;
}

}  // namespace ofsdp::fsdp
