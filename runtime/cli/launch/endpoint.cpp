#include "runtime/cli/launch/endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/cli/options/option_value.h"

namespace ofsdp::cli {
namespace {

constexpr int kConnectPatience = 1000;  // milliseconds

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct Resolved {
  Addresses addresses{nullptr, &freeaddrinfo};
  std::string problem;
};

Resolved resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const char* name = host.empty() ? nullptr : host.c_str();
  const int error = getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
  return {Addresses(found, &freeaddrinfo), error == 0 ? "" : gai_strerror(error)};
}

UniqueFd new_socket(const addrinfo& address) {
  return UniqueFd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

bool bind_to(int socket, const addrinfo& address) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return bind(socket, address.ai_addr, address.ai_addrlen) == 0;
}

// An address can be bound only on its own host; any port will do to find out.
bool is_here(const std::string& host) {
  const Resolved all = resolve(host, 0, 0);
  for (const addrinfo* a = all.addresses.get(); a != nullptr; a = a->ai_next) {
    const UniqueFd socket = new_socket(*a);
    if (socket.valid() && bind_to(socket.get(), *a)) return true;
  }
  return false;
}

bool is_numeric(const std::string& host) {
  return resolve(host, 0, AI_NUMERICHOST).addresses != nullptr;
}

std::optional<UniqueFd> listen_on(const std::string& host, int port) {
  const Resolved all = resolve(host, port, AI_PASSIVE);
  for (const addrinfo* a = all.addresses.get(); a != nullptr; a = a->ai_next) {
    UniqueFd socket = new_socket(*a);
    if (!socket.valid() || !bind_to(socket.get(), *a)) continue;
    if (listen(socket.get(), SOMAXCONN) == 0) return socket;
  }
  return std::nullopt;
}

std::string connect_within(int socket, const addrinfo& address) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (connect(socket, address.ai_addr, address.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd event{socket, POLLOUT, 0};
  if (poll(&event, 1, kConnectPatience) <= 0) return "no answer";
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? format_text("{}:{}", host, port)
                                             : format_text("[{}]:{}", host, port);
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  std::string rest;  // ":PORT", or nothing
  if (text.starts_with('[') && text.find(']') != std::string::npos) {
    endpoint.host = text.substr(1, text.find(']') - 1);
    rest = text.substr(text.find(']') + 1);
  } else {
    const size_t colon = text.find(':');
    const bool ipv6 = colon != text.rfind(':');
    endpoint.host = ipv6 ? text : text.substr(0, colon);
    if (!ipv6 && colon != std::string::npos) rest = text.substr(colon);
  }
  std::optional<int64_t> port = kRendezvousPort;
  if (!rest.empty()) port = rest[0] == ':' ? parse_integer(rest.substr(1)) : std::nullopt;
  if (endpoint.host.empty() || !port || *port < 1 || *port > 65535) {
    return input_error(
        "--rdzv-endpoint: expected HOST:PORT with a port from 1 to 65535, found '{}'", text);
  }
  endpoint.port = static_cast<int>(*port);
  return endpoint;
}

std::optional<UniqueFd> listen_at(const Endpoint& endpoint) {
  if (!is_here(endpoint.host)) return std::nullopt;
  if (is_numeric(endpoint.host) || endpoint.host == "localhost") {
    return listen_on(endpoint.host, endpoint.port);
  }
  // "::" takes IPv4 as well, where the host has IPv6 at all.
  std::optional<UniqueFd> socket = listen_on("::", endpoint.port);
  return socket ? std::move(socket) : listen_on("0.0.0.0", endpoint.port);
}

Connection connect_to(const Endpoint& endpoint) {
  const Resolved all = resolve(endpoint.host, endpoint.port, 0);
  Connection connection{UniqueFd(), all.problem};
  for (const addrinfo* a = all.addresses.get(); a != nullptr; a = a->ai_next) {
    UniqueFd socket = new_socket(*a);
    if (!socket.valid()) continue;
    connection.problem = connect_within(socket.get(), *a);
    if (!connection.problem.empty()) continue;
    connection.socket = std::move(socket);
    return connection;
  }
  return connection;
}

std::string address_of_peer(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char host[NI_MAXHOST] = {};
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof host, nullptr, 0,
              NI_NUMERICHOST);
  const std::string text = host;
  return text.starts_with("::ffff:") ? text.substr(7) : text;  // IPv4 that came over IPv6
}

int free_port() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t bytes = sizeof address;
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) return 29500;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin_port);
}

}  // namespace ofsdp::cli
