// TCP sockets: listening, connecting, accepting. All sockets are non-blocking and close on exec.
// Addresses are texts in numbers ("10.0.0.1") unless they are called hosts.
//
// Only Listener::open returns a Status, kFault with the system's text. Other functions return error
// values, since callers try again or name the peer themselves.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

using StreamClock = std::chrono::steady_clock;

// Returns true if errno says that a call on a non-blocking socket must be tried again.
bool would_block();

// Blocks until `fd` is ready for `events` (as poll takes them). Returns false at the deadline.
bool wait_ready(int fd, short events, StreamClock::time_point deadline);

// kRowElementsPerThread: another socket from this user may hold the port at the same time
// (HeldPort).
enum class PortUse { kAlone, kRowElementsPerThread };

// Sockets that listen at some addresses on this host, all at one port, and are polled as one.
class Listener {
 public:
  // If `port` is 0, takes one that is free at all the addresses, and sets `port` to it.
  static Result<Listener> open(const std::vector<std::string>& addresses, int& port,
                               PortUse use = PortUse::kAlone);

  bool valid() const { return polled_.valid(); }
  int fd() const { return polled_.get(); }  // readable if a client has connected
  // Returns the next connection, which may be a stranger's; not valid if there is none (errno).
  UniqueFd accept() const;
  void close() { *this = Listener(); }

 private:
  static Result<Listener> listen_at(const std::vector<std::string>& addresses, int& port,
                                    PortUse use, int& error);

  UniqueFd polled_;
  std::vector<UniqueFd> sockets_;
};

// Returns `host`'s addresses that belong to this machine; none if it is another host. Many machines
// resolve their own name to a loopback address, which no other can reach: then the outer addresses
// are returned too.
std::vector<std::string> addresses_here(const std::string& host);
// Returns the addresses at which other hosts can reach this one: the source address on the route to
// the outside if there is one, else all but loopback.
std::vector<std::string> outer_addresses();

// Holds a free TCP port on this host: while it lives, only this user's Listener with
// PortUse::kRowElementsPerThread can take the port (SO_REUSEPORT, socket(7)).
class HeldPort {
 public:
  static HeldPort any();
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 29500;  // torchrun's default, if the system gives none
};
// Returns a port that was free; another process may take it.
int free_port();

struct Connection {
  UniqueFd socket;         // valid if the connection was made
  std::string unresolved;  // the resolver's text if the name has no address
  int error = 0;           // else errno; ETIMEDOUT if the time was over

  std::string problem(const std::string& address, int port) const;  // for a message
};
// Tries every address that a host has once, each for at most `each`, all until the deadline.
Connection connect_to(const std::string& address, int port, StreamClock::time_point deadline,
                      std::chrono::milliseconds each = std::chrono::hours(1));
// Makes the socket send at once (no Nagle), and break the connection if bytes stay unacknowledged
// or probes stay unanswered for `patience`.
void tune(int socket, std::chrono::seconds patience);

std::string peer_address(int socket);
std::string own_address(int socket);  // this end's
bool is_loopback(const std::string& address);
std::vector<std::string> own_addresses();  // this host's, without loopback

}  // namespace ofsdp::fsdp
