// How the ranks on one host meet when a run starts, and how they notice later that one has died.
//
// The first rank on the host listens on an abstract Unix socket (a name without a file, which
// vanishes with the process), named after the user and the rendezvous; the others connect. If
// another user holds that name, the ranks use the next one of a few. Only processes of the same
// user are admitted.
//
// Each rank makes a liveness pipe and keeps the only write end. However the rank ends, the kernel
// then closes the pipe, and whoever polls a read end notices. Each rank sends a read end to the
// first rank, which sends every rank the control page and all other ranks' read ends.
//
// Order: connect_ranks (rank_identity.h) calls `meet` once per process; the communicator keeps the
// result and starts a PeerMonitor. The sockets stay open (PeerLinks), to pass descriptors of shared
// memory.
//
// Errors of `meet`: kInput if processes contradict each other (two are rank 1, or they expect
// different rank counts); kFault with the missing ranks if ranks do not come in time; kPeer if the
// first rank has called the meeting off, which reports the reason itself.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/peer_wait.h"
#include "fsdp/comm/rank_identity.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// --- Messages between two processes on one host, which may carry a file descriptor.

// `kTimeout`: no message came in time.
struct Received {
  enum class Kind { kMessage, kClosed, kTimeout };
  Kind kind = Kind::kClosed;
  UniqueFd fd;  // valid if the message carried one; close-on-exec
};

// Sends one message over a SOCK_SEQPACKET Unix socket, with a copy of the descriptor `fd`
// (SCM_RIGHTS) unless it is -1. Returns false if the peer has closed the socket.
bool send_bytes(int socket, const void* message, size_t bytes, int fd);
// Receives one message, waiting at most `patience`. Returns kClosed also if the message does not
// have `bytes` bytes, or has several descriptors: no rank sends such a message.
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

// This process's rank among the ranks on this host.
struct LocalRank {
  std::vector<int> ranks;  // the ranks on this host, ascending; a place is an index in this list
  int place = 0;           // this rank's place
  int world = 1;           // ranks on all hosts
  std::string rendezvous;  // a name that only the ranks on this host in this run have

  int here() const { return static_cast<int>(ranks.size()); }
  int rank() const { return ranks[static_cast<size_t>(place)]; }
};

// The sockets between the first rank on the host and each other rank, on which ranks that have met
// pass descriptors. Waits check the control page, so that they end if any rank dies.
class PeerLinks {
 public:
  PeerLinks() = default;
  PeerLinks(LocalRank self, std::vector<UniqueFd> sockets)
      : self_(std::move(self)), sockets_(std::move(sockets)) {}

  const LocalRank& self() const { return self_; }
  // Gives `mine` to all ranks and returns every rank's descriptor, by place; this rank's own entry
  // is not valid. Collective.
  Result<std::vector<UniqueFd>> all_gather_fds(int mine, const PeerWait& wait,
                                               const CollectiveSite& site);
  // Gives the first rank's `mine` to the other ranks, and returns it there. Returns an invalid one
  // on the first rank. Collective.
  Result<UniqueFd> broadcast_fd(int mine, const PeerWait& wait, const CollectiveSite& site);

 private:
  int socket_of(int peer) const { return sockets_[static_cast<size_t>(peer)].get(); }
  Status send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site);
  Result<UniqueFd> receive(int peer, const PeerWait& wait, const CollectiveSite& site);

  LocalRank self_;
  std::vector<UniqueFd> sockets_;  // first rank: by place; others: only the one to the first rank
};

// Returns the LocalRank for a run with all ranks on one host.
LocalRank only_host(const RankIdentity& identity);

// The result of a meeting.
struct LocalRendezvous {
  ControlPage page;
  PeerLinks links;
  std::vector<UniqueFd> liveness_pipes;  // read ends, by place
  UniqueFd own_liveness_pipe;  // write end; closed before note_leave, it means that the rank died
  int cores = 1;               // cores that the ranks on this host may use together
};

Result<LocalRendezvous> meet(const LocalRank& self, std::chrono::seconds timeout);

// A thread that polls the other ranks' liveness pipes. If a pipe closes although the rank has not
// left and no failure is known, the thread records the death in the control page, which wakes every
// waiting rank. The communicator owns the monitor; the page must outlive it.
class PeerMonitor {
 public:
  // `liveness_pipes`: read ends, by place.
  static Result<std::unique_ptr<PeerMonitor>> start(const ControlPage* page, const LocalRank& self,
                                                    std::vector<UniqueFd> liveness_pipes);
  ~PeerMonitor() { stop(); }
  // Ends the thread and returns after it has ended. May be called again.
  void stop();

 private:
  PeerMonitor(const ControlPage* page, std::vector<int> ranks, std::vector<UniqueFd> liveness_pipes,
              UniqueFd stop_event)
      : page_(page),
        ranks_(std::move(ranks)),
        liveness_pipes_(std::move(liveness_pipes)),
        stop_event_(std::move(stop_event)) {}
  void watch();
  bool lost(int rank);

  const ControlPage* page_;
  std::vector<int> ranks_;
  std::vector<UniqueFd> liveness_pipes_;
  UniqueFd stop_event_;
  std::vector<pollfd> events_;  // one per rank, then the stop event
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
