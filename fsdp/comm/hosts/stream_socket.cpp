#include "fsdp/comm/hosts/stream_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace ofsdp::fsdp {
namespace {

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

// True when the socket is ready for `events` before the deadline.
bool ready(int socket, short events, StreamClock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - StreamClock::now()).count();
    pollfd event{socket, events, 0};
    const int count = poll(&event, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

// IPv6 with IPv4 inside, or IPv4 alone where the system has no IPv6.
UniqueFd bound_socket(int port, int& error) {
  UniqueFd socket6(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket6.valid()) {
    set(socket6.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    set(socket6.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    if (bind(socket6.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) return socket6;
    error = errno;
    if (error == EADDRINUSE) return {};
  }
  UniqueFd socket4(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set(socket4.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(socket4.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) return socket4;
  error = errno;
  return {};
}

int port_of(int socket) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  getsockname(socket, reinterpret_cast<sockaddr*>(&name), &bytes);
  const bool six = name.ss_family == AF_INET6;
  return ntohs(six ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                   : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

std::string numbers(const sockaddr* address, socklen_t bytes) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  const std::string found = text;
  return found.starts_with("::ffff:") ? found.substr(7) : found;
}

UniqueFd try_address(const addrinfo& address, StreamClock::time_point deadline, int& error) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = errno;
  if (!fd.valid()) return {};
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  error = errno;
  if (error != EINPROGRESS) return {};
  if (!ready(fd.get(), POLLOUT, deadline)) {
    error = ETIMEDOUT;
    return {};
  }
  socklen_t bytes = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? std::move(fd) : UniqueFd();
}

}  // namespace

Result<UniqueFd> listen_on(int& port) {
  int error = 0;
  UniqueFd listener = bound_socket(port, error);
  if (listener.valid() && listen(listener.get(), SOMAXCONN) != 0) error = errno;
  if (error != 0 && !listener.valid()) {
    return fault("cannot listen at port {}: {}", port, std::strerror(error));
  }
  port = port_of(listener.get());
  return listener;
}

Result<UniqueFd> connect_to(const std::string& address, int port,
                            StreamClock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0) return fault("'{}' is no address: {}", address, gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  int error = 0;
  for (const addrinfo* next = list; next != nullptr; next = next->ai_next) {
    UniqueFd fd = try_address(*next, deadline, error);
    if (fd.valid()) return fd;
  }
  return fault("{}:{}: {}", address, port, std::strerror(error));
}

UniqueFd accept_one(int listener, StreamClock::time_point deadline) {
  if (!ready(listener, POLLIN, deadline)) return {};
  return UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void tune(int socket, std::chrono::seconds patience) {
  const int seconds = static_cast<int>(patience.count());
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 4));
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 4));
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

std::string peer_address(int socket) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return "";
  return numbers(reinterpret_cast<sockaddr*>(&name), bytes);
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* next = list; next != nullptr; next = next->ifa_next) {
    if (next->ifa_addr == nullptr || (next->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if ((next->ifa_flags & IFF_UP) == 0) continue;
    const int family = next->ifa_addr->sa_family;
    if (family == AF_INET) found.push_back(numbers(next->ifa_addr, sizeof(sockaddr_in)));
    if (family == AF_INET6) found.push_back(numbers(next->ifa_addr, sizeof(sockaddr_in6)));
  }
  freeifaddrs(list);
  return found;
}

bool send_whole(int socket, const void* bytes, size_t count, StreamClock::time_point deadline) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    if (!ready(socket, POLLOUT, deadline)) return false;
    const ssize_t sent = send(socket, next, count, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    next += sent;
    count -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_whole(int socket, void* bytes, size_t count, StreamClock::time_point deadline) {
  char* next = static_cast<char*>(bytes);
  while (count > 0) {
    if (!ready(socket, POLLIN, deadline)) return false;
    const ssize_t got = recv(socket, next, count, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    next += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace ofsdp::fsdp
