// TCP sockets: listening, connecting, accepting. All sockets are non-blocking and close on exec.
//
// Ownership: the caller owns the sockets. Threads: any. Errors: kFault with the system's words from
// Listener::open; elsewhere values, since callers try again or name the peer themselves.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

using StreamClock = std::chrono::steady_clock;

// Whether errno says that a call on a non-blocking socket is to be tried again.
bool would_block();

// Waits until `fd` is ready for `events` (as poll takes them). False: the deadline came first.
bool wait_ready(int fd, short events, StreamClock::time_point deadline);

// kHeld: another socket of this user may hold the port meanwhile (HeldPort).
enum class PortUse { kAlone, kHeld };

// Sockets that listen at some addresses of this host, all at one port, polled as one.
class Listener {
 public:
  // Port 0 means any that is free at all the addresses; `port` becomes the one that is used.
  static Result<Listener> open(const std::vector<std::string>& addresses, int& port,
                               PortUse use = PortUse::kAlone);

  bool valid() const { return polled_.valid(); }
  int fd() const { return polled_.get(); }  // readable when somebody has connected
  // The next connection, which may be a stranger's; not valid when there is none (errno).
  UniqueFd accept() const;
  void close() { *this = Listener(); }

 private:
  static Result<Listener> listen_at(const std::vector<std::string>& addresses, int& port,
                                    PortUse use, int& error);

  UniqueFd polled_;
  std::vector<UniqueFd> sockets_;
};

// Returns the addresses of `host` that are this machine's, in numbers; none when it is another
// host. Many machines resolve their own name to a loopback address, which no other can reach: then
// the one from which this machine leaves its network is among them.
std::vector<std::string> addresses_here(const std::string& host);
// Returns those at which other hosts can reach this one, in numbers: the one from which it leaves
// its network, or else all but loopback.
std::vector<std::string> outer_addresses();
// A TCP port of this host that was free, and that nobody else can take as long as this is there but
// a Listener of this user with PortUse::kHeld (SO_REUSEPORT, socket(7)).
class HeldPort {
 public:
  static HeldPort any();
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 29500;  // torchrun's default, where the system gives none
};
// One that was free a moment ago.
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
// Sends at once (no Nagle). Breaks the connection when bytes stay unacknowledged or probes stay
// unanswered for `patience`.
void tune(int socket, std::chrono::seconds patience);

std::string peer_address(int socket);          // in numbers
std::string own_address(int socket);           // of this end, in numbers
bool is_loopback(const std::string& address);  // of one in numbers
std::vector<std::string> own_addresses();      // of this host, without loopback, in numbers

}  // namespace ofsdp::fsdp
