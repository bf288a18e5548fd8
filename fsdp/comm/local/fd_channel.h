// Descriptors between processes on one host: messages that carry one, and PeerLinks, which passes
// descriptors of shared memory among ranks that have met (rendezvous.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/local/peer_wait.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

struct Received {
  enum class Kind { kMessage, kClosed, kTimeout };
  Kind kind = Kind::kClosed;
  UniqueFd fd;  // valid if the message carried one; close-on-exec
};

// Sends a message whole over a SOCK_SEQPACKET Unix socket, with a descriptor (SCM_RIGHTS) unless
// `fd` is -1; the caller keeps it. Returns false if the peer is gone.
bool send_bytes(int socket, const void* message, size_t bytes, int fd);
// Returns kClosed also for a message of another size than `bytes` or with several descriptors,
// which no rank sends.
Received receive_bytes(int socket, void* message, size_t bytes, std::chrono::milliseconds patience);

template <typename T>
bool send_message(int socket, const T& message, int fd) {
  static_assert(std::is_trivially_copyable_v<T>);
  return send_bytes(socket, &message, sizeof message, fd);
}

template <typename T>
Received receive_message(int socket, T& message, std::chrono::milliseconds patience) {
  static_assert(std::is_trivially_copyable_v<T>);
  return receive_bytes(socket, &message, sizeof message, patience);
}

// A rank among the ranks on this host.
struct LocalRank {
  std::vector<int> ranks;  // on this host, ascending; a place is an index in it
  int place = 0;           // of this rank
  int world = 1;           // ranks on all hosts
  std::string rendezvous;  // unique to the ranks on this host in this run

  int here() const { return static_cast<int>(ranks.size()); }
  int rank() const { return ranks[static_cast<size_t>(place)]; }
};

// Sockets between the first rank on the host and each other one. Waits check the control page, so a
// death elsewhere ends them.
class PeerLinks {
 public:
  PeerLinks() = default;
  PeerLinks(LocalRank self, std::vector<UniqueFd> sockets)
      : self_(std::move(self)), sockets_(std::move(sockets)) {}

  const LocalRank& self() const { return self_; }
  // Gives `mine` to all ranks and returns a copy of everyone's, by place; the own one is not valid.
  Result<std::vector<UniqueFd>> all_gather_fds(int mine, const PeerWait& wait,
                                               const CollectiveSite& site);
  // Returns the first rank's descriptor; at the first rank, gives `mine` and returns none.
  Result<UniqueFd> broadcast_fd(int mine, const PeerWait& wait, const CollectiveSite& site);

 private:
  int socket_of(int peer) const { return sockets_[static_cast<size_t>(peer)].get(); }
  Status send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site);
  Result<UniqueFd> receive(int peer, const PeerWait& wait, const CollectiveSite& site);

  LocalRank self_;
  std::vector<UniqueFd> sockets_;  // by place; the first rank has all, the others only one
};

}  // namespace ofsdp::fsdp
