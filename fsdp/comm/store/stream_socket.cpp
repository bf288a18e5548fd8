#include "fsdp/comm/store/stream_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

struct Resolved {
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> first{nullptr, &freeaddrinfo};
  std::string problem;
};

// A silent name server would delay getaddrinfo beyond every deadline.
constexpr std::chrono::seconds kResolverPatience{20};

constexpr int kPortsTried = 64;  // to find one that is free at all addresses

struct Lookup {
  std::string host, port;
  addrinfo hints{};
  gaicb request{};
};

Resolved make_resolved(int error, addrinfo* found) {
  Resolved all;
  if (error == 0) all.first.reset(found);
  if (error != 0) all.problem = gai_strerror(error);
  return all;
}

// Leaks the lookup on purpose if the resolver still works on it at the deadline.
Resolved look_up(std::unique_ptr<Lookup> lookup, StreamClock::time_point deadline) {
  gaicb* const list[] = {&lookup->request};
  if (const int error = getaddrinfo_a(GAI_NOWAIT, const_cast<gaicb**>(list), 1, nullptr)) {
    return make_resolved(error, nullptr);
  }
  while (gai_error(list[0]) == EAI_INPROGRESS && StreamClock::now() < deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - StreamClock::now());
    const timespec patience{.tv_sec = left.count() / 1000,
                            .tv_nsec = left.count() % 1000 * 1'000'000};
    gai_suspend(list, 1, &patience);
  }
  const int error = gai_error(list[0]);
  if (error != EAI_INPROGRESS) return make_resolved(error, list[0]->ar_result);
  if (gai_cancel(list[0]) != EAI_CANCELED) (void)lookup.release();
  Resolved late;
  late.problem = "the name server does not answer";
  return late;
}

// Asks no name server if `host` is an address in numbers.
Resolved resolve(const std::string& host, int port, int flags,
                 StreamClock::time_point deadline = StreamClock::time_point::max()) {
  auto lookup = std::make_unique<Lookup>();
  lookup->host = host;
  lookup->port = std::to_string(port);
  lookup->hints.ai_socktype = SOCK_STREAM;
  lookup->hints.ai_flags = flags | AI_NUMERICSERV | AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), lookup->port.c_str(), &lookup->hints, &found);
  if (error == 0 || (flags & AI_NUMERICHOST) != 0) return make_resolved(error, found);
  lookup->hints.ai_flags = flags | AI_NUMERICSERV;
  lookup->request.ar_name = lookup->host.c_str();
  lookup->request.ar_service = lookup->port.c_str();
  lookup->request.ar_request = &lookup->hints;
  return look_up(std::move(lookup), std::min(deadline, StreamClock::now() + kResolverPatience));
}

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

UniqueFd new_socket(int family) {
  return UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// `options`: SO_REUSEADDR or SO_REUSEPORT.
UniqueFd bound_socket(const addrinfo& address, int& error,
                      std::initializer_list<int> options = {SO_REUSEADDR}) {
  UniqueFd fd = new_socket(address.ai_family);
  for (const int option : options) set_option(fd.get(), SOL_SOCKET, option, 1);
  if (address.ai_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (fd.valid() && bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  error = errno;
  return {};
}

int bound_port(int socket) {
  sockaddr_in6 name{};  // an IPv4 address has the port at the same offset
  socklen_t bytes = sizeof name;
  getsockname(socket, reinterpret_cast<sockaddr*>(&name), &bytes);
  return ntohs(name.sin6_port);
}

UniqueFd listening_socket(const std::string& address, int port, PortUse use, int& error) {
  const Resolved found = resolve(address, port, AI_PASSIVE | AI_NUMERICHOST);
  error = EADDRNOTAVAIL;
  if (found.first == nullptr) return {};
  UniqueFd fd = use == PortUse::kAlone
                    ? bound_socket(*found.first, error)
                    : bound_socket(*found.first, error, {SO_REUSEADDR, SO_REUSEPORT});
  if (fd.valid() && listen(fd.get(), SOMAXCONN) == 0) return fd;
  if (fd.valid()) error = errno;
  return {};
}

std::string numeric_address(const sockaddr* address, socklen_t bytes) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  const std::string found = text;
  return found.starts_with("::ffff:") ? found.substr(7) : found;  // IPv4 that came over IPv6
}

// `name_of`: getpeername or getsockname.
std::string end_address(int socket, decltype(&getpeername) name_of) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  if (name_of(socket, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return "";
  return numeric_address(reinterpret_cast<sockaddr*>(&name), bytes);
}

// Returns 0 or an errno.
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

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

bool wait_ready(int fd, short events, StreamClock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - StreamClock::now());
    pollfd event{fd, events, 0};
    const auto patience = std::clamp<int64_t>(left.count(), 0, 1 << 30);
    const int count = poll(&event, 1, static_cast<int>(patience));
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

Result<Listener> Listener::open(const std::vector<std::string>& addresses, int& port, PortUse use) {
  for (int left = kPortsTried; true; --left) {
    int taken = port, error = 0;
    auto listener = listen_at(addresses, taken, use, error);
    // The port that was free at the first address may be in use at the next.
    if (!listener.ok() && port == 0 && error == EADDRINUSE && left > 1) continue;
    if (listener.ok()) port = taken;
    return listener;
  }
}

Result<Listener> Listener::listen_at(const std::vector<std::string>& addresses, int& port,
                                     PortUse use, int& error) {
  Listener listener;
  listener.polled_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  OFSDP_FAULT_IF(!listener.valid(), "cannot listen: {}", std::strerror(errno));
  for (const std::string& address : addresses) {
    UniqueFd fd = listening_socket(address, port, use, error);
    OFSDP_FAULT_IF(!fd.valid(), "cannot listen at port {} of {}: {}", port, address,
                   std::strerror(error));
    port = bound_port(fd.get());
    epoll_event event{.events = EPOLLIN, .data = {}};
    epoll_ctl(listener.fd(), EPOLL_CTL_ADD, fd.get(), &event);
    listener.sockets_.push_back(std::move(fd));
  }
  return listener;
}

UniqueFd Listener::accept() const {
  for (const UniqueFd& socket : sockets_) {
    UniqueFd fd(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid() || !would_block()) return fd;
  }
  return {};
}

std::vector<std::string> addresses_here(const std::string& host) {
  std::vector<std::string> found;
  const Resolved all = resolve(host, 0, 0);
  for (const addrinfo* a = all.first.get(); a != nullptr; a = a->ai_next) {
    int error =
        0;  // an address can be bound only on the host that has it; any port will do to find out
    const std::string address = numeric_address(a->ai_addr, a->ai_addrlen);
    const bool is_new = std::ranges::find(found, address) == found.end();
    if (is_new && bound_socket(*a, error).valid()) found.push_back(address);
  }
  const bool names_loopback = host == "localhost" || resolve(host, 0, AI_NUMERICHOST).first;
  if (!found.empty() && !names_loopback && std::ranges::all_of(found, is_loopback)) {
    std::ranges::copy(outer_addresses(), std::back_inserter(found));
  }
  return found;
}

std::vector<std::string> outer_addresses() {
  // Addresses for documentation (RFC 5737, RFC 3849): connecting a datagram socket sends nothing.
  for (const char* outside : {"192.0.2.1", "2001:db8::1"}) {
    const Resolved found = resolve(outside, 9, AI_NUMERICHOST);
    const UniqueFd fd(socket(found.first->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || connect(fd.get(), found.first->ai_addr, found.first->ai_addrlen) != 0) {
      continue;
    }
    const std::string address = own_address(fd.get());
    if (!address.empty() && !is_loopback(address)) return {address};
  }
  return own_addresses();
}

HeldPort HeldPort::any() {
  HeldPort held;
  for (const char* every : {"0.0.0.0", "::"}) {
    int error = 0;
    const Resolved all = resolve(every, 0, AI_PASSIVE | AI_NUMERICHOST);
    held.socket_ = bound_socket(*all.first, error, {SO_REUSEPORT});
    if (held.socket_.valid()) break;
  }
  if (held.socket_.valid()) held.port_ = bound_port(held.socket_.get());
  return held;
}

int free_port() { return HeldPort::any().port(); }

Connection connect_to(const std::string& address, int port, StreamClock::time_point deadline,
                      std::chrono::milliseconds each) {
  const Resolved all = resolve(address, port, 0, deadline);
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

std::string peer_address(int socket) { return end_address(socket, getpeername); }
std::string own_address(int socket) { return end_address(socket, getsockname); }

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
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
    if (family == AF_INET) found.push_back(numeric_address(next->ifa_addr, sizeof(sockaddr_in)));
    if (family != AF_INET6) continue;
    const auto* name = reinterpret_cast<const sockaddr_in6*>(next->ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&name->sin6_addr))
      continue;  // other hosts would have to name the device
    found.push_back(numeric_address(next->ifa_addr, sizeof(sockaddr_in6)));
  }
  return found;
}

}  // namespace ofsdp::fsdp
