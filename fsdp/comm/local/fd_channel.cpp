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

// Room for one descriptor with a message, aligned as the kernel wants it.
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

// All of them, though the slot has room for one: its padding may hold a second.
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
  // MSG_CTRUNC with a descriptor: there were more. Without one: this process has no room for it.
  const bool more = fds.size() > 1 || (!fds.empty() && (header.msg_flags & MSG_CTRUNC) != 0);
  if (!whole || more) return {};
  return {Received::Kind::kMessage, fds.empty() ? UniqueFd() : std::move(fds[0])};
}

}  // namespace ofsdp::fsdp
