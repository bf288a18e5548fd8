// TCP sockets: listening, connecting, accepting. All sockets are non-blocking and close on exec.
//
// Ownership: the caller owns the sockets. Threads: any. Errors: kFault with the system's words from
// listen_on; elsewhere values, since callers try again or name the peer themselves.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

using StreamClock = std::chrono::steady_clock;

// Waits until `fd` is ready for `events` (as poll takes them). False: the deadline came first.
bool wait_ready(int fd, short events, StreamClock::time_point deadline);

// Listens at all addresses of this host. Port 0 means any; `port` becomes the one that is used.
Result<UniqueFd> listen_on(int& port);
// Listens at `host` and nowhere else, or at all addresses when it is a name other than "localhost":
// many hosts resolve their own name to a loopback address. None when `host` is another host or when
// somebody listens there already.
std::optional<UniqueFd> listen_at(const std::string& host, int port);
// Returns a TCP port of this host that was free a moment ago.
int free_port();

struct Connection {
  UniqueFd socket;         // valid when the connection was made
  std::string unresolved;  // the resolver's words when the name has no address
  int error = 0;           // else the system's number; ETIMEDOUT when time was up

  std::string problem(const std::string& address, int port) const;  // for a message
};
// Tries every address of the name once, each for at most `each`, all of them until the deadline.
Connection connect_to(const std::string& address, int port, StreamClock::time_point deadline,
                      std::chrono::milliseconds each = std::chrono::hours(1));
// Returns the next connection, which may be a stranger's; not valid when there is none.
UniqueFd accept_one(int listener);

// Sends at once (no Nagle). Breaks the connection when bytes stay unacknowledged or probes stay
// unanswered for `patience`.
void tune(int socket, std::chrono::seconds patience);

std::string peer_address(int socket);      // in numbers
std::vector<std::string> own_addresses();  // of this host, without loopback, in numbers

}  // namespace ofsdp::fsdp
