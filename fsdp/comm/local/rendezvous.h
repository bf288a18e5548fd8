// How the ranks on one host meet, and how they notice later that one has died.
//
// The first rank on the host listens on an abstract Unix socket (no file, gone with the process),
// which is named after user and rendezvous; the others connect. If another user holds that name,
// the next one is taken. Each rank has a liveness pipe: only that rank holds the write end, so the
// kernel closes it however the rank ends. It sends the read end to the first rank, which hands the
// control page and all liveness pipes to everyone. Only the same user's processes are let in.
//
// The connections stay (PeerLinks), to pass shared memory descriptors.
//
// Errors: kInput if the environment contradicts itself (two ranks 1, another world size); kFault
// with the missing ranks if they do not come in time; kPeer if rank 0 has called the meeting off
// and reports the reason itself.
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

// Descriptors between processes on one host: messages that carry one, and PeerLinks, which passes
// shared memory descriptors among ranks that have met.

struct Received {
  enum class Kind { kMessage, kClosed, kTimeout };
  Kind kind = Kind::kClosed;
  UniqueFd fd;  // valid if the message carried one; close-on-exec
};

// Sends a message whole over a SOCK_SEQPACKET Unix socket, with a descriptor (SCM_RIGHTS) unless
// `fd` is -1; the caller keeps it. Returns false if the peer is gone.
bool send_bytes(int socket, const void* message, size_t bytes, int fd);
// Returns kClosed also for a message with another size than `bytes` or with several descriptors,
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
  int place = 0;           // this rank's
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

// Returns this rank's place if all ranks are on one host.
LocalRank only_host(const RankIdentity& identity);

struct LocalRendezvous {
  ControlPage page;
  PeerLinks links;
  std::vector<UniqueFd> liveness_pipes;  // read ends, by place
  UniqueFd own_liveness_pipe;            // write end; if it closes before the rank leaves, it died
  int cores = 1;                         // that the ranks may use together
};

Result<LocalRendezvous> meet(const LocalRank& self, std::chrono::seconds timeout);

// Watches the other ranks' liveness pipes. If one closes although the rank has not left and no
// failure is known, notes the death in the control page and wakes every waiter. The thread sleeps
// in poll. The page must outlive the monitor.
class PeerMonitor {
 public:
  // `liveness_pipes`: read ends, by place.
  static Result<std::unique_ptr<PeerMonitor>> start(const ControlPage* page, const LocalRank& self,
                                                    std::vector<UniqueFd> liveness_pipes);
  ~PeerMonitor() { stop(); }
  // Returns after the thread has ended; may be called again.
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
  std::vector<pollfd> events_;  // one for each rank, the stop event last
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
