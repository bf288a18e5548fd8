// How the ranks of one host find each other, and what they hold afterwards.
//
// Rank 0 listens on an abstract Unix socket (no file, gone with the process) named by user and
// rendezvous; the others connect. Each sends the read end of its lifeline, a pipe whose write end
// only it holds; rank 0 hands the control page and all lifelines to everyone. Only processes of the
// same user are let in.
//
// The connections stay, as a star around rank 0, to pass descriptors of shared memory.
//
// Ownership: a Meeting owns all it names. Threads: one. Errors: kInput when the environment
// contradicts itself (two ranks 1, another world); kFault naming the missing ranks when they do not
// come in time; kPeer when rank 0 has called it off and says why itself.
#pragma once

#include <chrono>
#include <vector>

#include "fsdp/control_page.h"
#include "fsdp/fd_channel.h"
#include "fsdp/peer_wait.h"
#include "fsdp/rank_identity.h"
#include "kernels/core/status.h"

namespace ofsdp {

// The star. Waits look at the control page, so a death elsewhere ends them.
class PeerLinks {
 public:
  PeerLinks() = default;
  PeerLinks(int rank, int world, std::vector<UniqueFd> sockets)
      : rank_(rank), world_(world), sockets_(std::move(sockets)) {}

  // Every rank gives `mine` and gets a copy of everyone's, by rank; its own is not valid.
  Result<std::vector<UniqueFd>> all_gather_fds(int mine, const PeerWait& wait,
                                               const CollectiveSite& site);
  // Rank 0 gives, the others get; rank 0's result is not valid.
  Result<UniqueFd> broadcast_fd(int mine, const PeerWait& wait, const CollectiveSite& site);

 private:
  int socket_of(int peer) const { return sockets_[static_cast<size_t>(peer)].get(); }
  Status send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site);
  Result<UniqueFd> receive(int peer, const PeerWait& wait, const CollectiveSite& site);

  int rank_ = 0;
  int world_ = 1;
  std::vector<UniqueFd> sockets_;  // by peer; all but rank 0 have only that of rank 0
};

struct Meeting {
  ControlPage page;
  PeerLinks links;
  std::vector<UniqueFd> lifelines;  // read ends, by rank
  UniqueFd own_lifeline;            // write end: closing it without leaving is death
  int cores = 1;                    // that the ranks may use together
};

Result<Meeting> meet(const RankIdentity& identity, std::chrono::seconds timeout);

}  // namespace ofsdp
