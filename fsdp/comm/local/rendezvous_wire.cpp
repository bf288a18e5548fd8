#include "fsdp/comm/local/rendezvous_wire.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace ofsdp::fsdp {

// Abstract: the first byte is zero and the length counts.
Address address_of(const std::string& rendezvous) {
  Address address;
  address.name.sun_family = AF_UNIX;
  std::string name = format_text("ofsdp-{}-{}", geteuid(), rendezvous);
  constexpr size_t kMost = sizeof address.name.sun_path - 1;
  if (name.size() > kMost) {
    const size_t hash = std::hash<std::string_view>{}(name);
    name = name.substr(0, kMost - 17) + format_text("-{:016x}", hash);
  }
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool same_user(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

void limit_sends(int socket, std::chrono::seconds timeout) {
  const timeval limit{timeout.count(), 0};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

UniqueFd new_socket() { return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

Status open_lifeline(Meeting& meeting, const LocalSeat& seat) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return fault("rank {}: pipe: {}", seat.rank(), std::strerror(errno));
  }
  meeting.lifelines.resize(static_cast<size_t>(seat.here()));
  meeting.lifelines[static_cast<size_t>(seat.place)] = UniqueFd(ends[0]);
  meeting.own_lifeline = UniqueFd(ends[1]);
  return {};
}

Hello hello_of(const LocalSeat& seat) {
  Hello hello{};
  hello.magic = kMagic;
  hello.place = seat.place;
  hello.here = seat.here();
  hello.pid = getpid();
  sched_getaffinity(0, sizeof hello.cores, &hello.cores);
  return hello;
}

}  // namespace ofsdp::fsdp
