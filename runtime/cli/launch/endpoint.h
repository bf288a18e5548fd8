// Where launchers meet: an address of one of the hosts, and sockets there.
//
// Ownership: the caller owns the sockets. Threads: any. Errors: kInput for a text that is no
// endpoint and a name that cannot be resolved; what the network refuses comes back as text, since
// it is tried again.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::cli {

inline constexpr int kRendezvousPort = 29400;  // torchrun's

struct Endpoint {
  std::string host;
  int port = kRendezvousPort;
  std::string text() const;
};

// HOST, HOST:PORT, [IPV6]:PORT.
Result<Endpoint> parse_endpoint(const std::string& text);

// Listens when the host is this one and nobody listens there yet; else nothing. A name (but
// localhost) is listened to on all addresses, since many hosts resolve their own to a loopback one.
std::optional<UniqueFd> listen_at(const Endpoint& endpoint);

struct Connection {
  UniqueFd socket;      // valid when it was made
  std::string problem;  // else
};
Connection connect_to(const Endpoint& endpoint);  // within about a second

std::string address_of_peer(int socket);  // numeric
// A TCP port of this host that was free a moment ago.
int free_port();

}  // namespace ofsdp::cli
