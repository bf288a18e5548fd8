#include "fsdp/comm/store/stream_socket.h"

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

constexpr int kNoFreePort = 29500;  // torchrun's default

struct Resolved {
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> first{nullptr, &freeaddrinfo};
  std::string problem;
};

Resolved resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  Resolved all;
  if (error == 0) all.first.reset(found);
  if (error != 0) all.problem = gai_strerror(error);
  return all;
}

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

UniqueFd new_socket(int family) {
  return UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

UniqueFd bound_socket(const addrinfo& address, int& error) {
  UniqueFd fd = new_socket(address.ai_family);
  if (fd.valid()) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  // "::" takes IPv4 as well.
  if (address.ai_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (fd.valid() && bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  error = errno;
  return {};
}

UniqueFd listening_socket(const std::string& host, int port, int& error) {
  const Resolved all = resolve(host, port, AI_PASSIVE);
  for (const addrinfo* a = all.first.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd = bound_socket(*a, error);
    if (fd.valid() && listen(fd.get(), SOMAXCONN) == 0) return fd;
    if (fd.valid()) error = errno;
  }
  return {};
}

// An address can be bound on its own host only; any port will do to find out.
bool is_here(const std::string& host) {
  int error = 0;
  const Resolved all = resolve(host, 0, 0);
  for (const addrinfo* a = all.first.get(); a != nullptr; a = a->ai_next) {
    if (bound_socket(*a, error).valid()) return true;
  }
  return false;
}

std::string in_numbers(const sockaddr* address, socklen_t bytes) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  const std::string found = text;
  return found.starts_with("::ffff:") ? found.substr(7) : found;  // IPv4 that came over IPv6
}

// Returns 0 or the system's number.
int connect_within(int fd, const addrinfo& address, StreamClock::time_point deadline) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_ready(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error;
}

}  // namespace

bool wait_ready(int fd, short events, StreamClock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - StreamClock::now());
    pollfd event{fd, events, 0};
    const auto patience = std::clamp<int64_t>(left.count(), 0, 1 << 30);
    const int count = poll(&event, 1, static_cast<int>(patience));
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

Result<UniqueFd> listen_on(int& port) {
  int error = 0;
  for (const char* any : {"::", "0.0.0.0"}) {
    UniqueFd fd = listening_socket(any, port, error);
    if (!fd.valid() && error == EADDRINUSE) break;
    if (!fd.valid()) continue;  // a system without IPv6
    sockaddr_in6 name{};        // an IPv4 address has its port at the same place
    socklen_t bytes = sizeof name;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &bytes);
    port = ntohs(name.sin6_port);
    return fd;
  }
  return fault("cannot listen at port {}: {}", port, std::strerror(error));
}

std::optional<UniqueFd> listen_at(const std::string& host, int port) {
  if (!is_here(host)) return std::nullopt;
  int error = 0;
  const bool numeric = resolve(host, port, AI_NUMERICHOST).first != nullptr;
  if (numeric || host == "localhost") {
    UniqueFd fd = listening_socket(host, port, error);
    return fd.valid() ? std::optional(std::move(fd)) : std::nullopt;
  }
  Result<UniqueFd> fd = listen_on(port);
  return fd.ok() ? std::optional(*std::move(fd)) : std::nullopt;
}

int free_port() {
  int port = 0;
  return listen_on(port).ok() ? port : kNoFreePort;
}

Connection connect_to(const std::string& address, int port, StreamClock::time_point deadline,
                      std::chrono::milliseconds each) {
  const Resolved all = resolve(address, port, 0);
  Connection connection{.socket = {}, .unresolved = all.problem};
  for (const addrinfo* a = all.first.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd = new_socket(a->ai_family);
    connection.error =
        fd.valid() ? connect_within(fd.get(), *a, std::min(deadline, StreamClock::now() + each))
                   : errno;
    if (connection.error != 0) continue;
    connection.socket = std::move(fd);
    break;
  }
  return connection;
}

UniqueFd accept_one(int listener) {
  return UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

std::string Connection::problem(const std::string& address, int port) const {
  if (!unresolved.empty()) return format_text("'{}' is no address: {}", address, unresolved);
  return format_text("{}:{}: {}", address, port, std::strerror(error));
}

void tune(int socket, std::chrono::seconds patience) {
  const int seconds = static_cast<int>(patience.count());
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 4));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 4));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

std::string peer_address(int socket) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return "";
  return in_numbers(reinterpret_cast<sockaddr*>(&name), bytes);
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* next = list; next != nullptr; next = next->ifa_next) {
    const unsigned flags = next->ifa_flags & (IFF_LOOPBACK | IFF_UP);
    if (next->ifa_addr == nullptr || flags != IFF_UP) continue;
    const int family = next->ifa_addr->sa_family;
    if (family == AF_INET) found.push_back(in_numbers(next->ifa_addr, sizeof(sockaddr_in)));
    if (family == AF_INET6) found.push_back(in_numbers(next->ifa_addr, sizeof(sockaddr_in6)));
  }
  return found;
}

}  // namespace ofsdp::fsdp
