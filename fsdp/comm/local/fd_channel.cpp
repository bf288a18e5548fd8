#include "fsdp/comm/local/fd_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {
namespace {

// Room for one descriptor, aligned as the kernel requires.
union FdSlot {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

msghdr message_header(iovec& bytes, FdSlot& slot) {
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = slot.bytes;
  header.msg_controllen = sizeof slot.bytes;
  return header;
}

// Returns all descriptors: the slot is meant for one, but the padding may hold a second.
std::vector<UniqueFd> attached_fds(msghdr& header) {
  std::vector<UniqueFd> fds;
  const cmsghdr* control = CMSG_FIRSTHDR(&header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return fds;
  for (size_t at = CMSG_LEN(0); at + sizeof(int) <= control->cmsg_len; at += sizeof(int)) {
    int fd = -1;
    std::memcpy(&fd, reinterpret_cast<const char*>(control) + at, sizeof fd);
    fds.emplace_back(fd);
  }
  return fds;
}

constexpr char kFdFollows = 'F';

// Waits until the control page says why a connection closed: the peer failed, died or left.
Status why_closed(int peer, const PeerWait& wait, const CollectiveSite& site) {
  const std::atomic<uint64_t> never{0};
  return wait.until(never, 1, peer, site);
}

}  // namespace

bool send_bytes(int socket, const void* message, size_t bytes, int fd) {
  iovec part{const_cast<void*>(message), bytes};
  FdSlot slot{};
  msghdr header = message_header(part, slot);
  if (fd < 0) {
    header.msg_control = nullptr;
    header.msg_controllen = 0;
  } else {
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

Received receive_bytes(int socket, void* message, size_t bytes,
                       std::chrono::milliseconds patience) {
  if (!wait_ready(socket, POLLIN, StreamClock::now() + patience))
    return {Received::Kind::kTimeout, {}};
  iovec part{message, bytes};
  FdSlot slot{};
  msghdr header = message_header(part, slot);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return {};
  std::vector<UniqueFd> fds = attached_fds(header);
  const bool whole = got == static_cast<ssize_t>(bytes) && (header.msg_flags & MSG_TRUNC) == 0;
  // MSG_CTRUNC with a descriptor means that there were more; without one, that this process cannot
  // open another.
  const bool more = fds.size() > 1 || (!fds.empty() && (header.msg_flags & MSG_CTRUNC) != 0);
  if (!whole || more) return {};
  return {Received::Kind::kMessage, fds.empty() ? UniqueFd() : std::move(fds[0])};
}

Status PeerLinks::send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site) {
  if (send_message(socket_of(peer), kFdFollows, fd)) return {};
  return why_closed(self_.ranks[static_cast<size_t>(peer)], wait, site);
}

Result<UniqueFd> PeerLinks::receive(int peer, const PeerWait& wait, const CollectiveSite& site) {
  const int rank = self_.ranks[static_cast<size_t>(peer)];
  const auto slices = wait.timeout() / PeerWait::kSlice + 1;
  WaitNote note = wait.note(rank);
  for (int64_t slice = 0; slice < slices; ++slice, note.look()) {
    char kind = 0;
    Received got = receive_message(socket_of(peer), kind, PeerWait::kSlice);
    if (got.kind == Received::Kind::kMessage) {
      note.met();
      if (!got.fd.valid()) return fault("rank {}: no descriptors left (ulimit -n)", self_.rank());
      return std::move(got.fd);
    }
    if (got.kind == Received::Kind::kClosed) return why_closed(rank, wait, site);
    OFSDP_RETURN_IF_ERROR(wait.check(site));
  }
  note.late();
  return wait.late(rank, site);
}

Result<std::vector<UniqueFd>> PeerLinks::all_gather_fds(int mine, const PeerWait& wait,
                                                        const CollectiveSite& site) {
  const int place = self_.place, here = self_.here();
  std::vector<UniqueFd> all(static_cast<size_t>(here));
  if (place != 0) OFSDP_RETURN_IF_ERROR(send(0, mine, wait, site));
  for (int peer = 0; peer < here; ++peer) {
    if (peer == place) continue;
    OFSDP_ASSIGN_OR_RETURN(all[static_cast<size_t>(peer)],
                           receive(place == 0 ? peer : 0, wait, site));
  }
  if (place != 0) return all;
  for (int to = 1; to < here; ++to) {
    for (int of = 0; of < here; ++of) {
      const int fd = of == 0 ? mine : all[static_cast<size_t>(of)].get();
      if (of != to) OFSDP_RETURN_IF_ERROR(send(to, fd, wait, site));
    }
  }
  return all;
}

Result<UniqueFd> PeerLinks::broadcast_fd(int mine, const PeerWait& wait,
                                         const CollectiveSite& site) {
  if (self_.place != 0) return receive(0, wait, site);
  for (int peer = 1; peer < self_.here(); ++peer)
    OFSDP_RETURN_IF_ERROR(send(peer, mine, wait, site));
  return UniqueFd();
}

}  // namespace ofsdp::fsdp
