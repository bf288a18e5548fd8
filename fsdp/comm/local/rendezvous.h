// How the ranks of one host find each other, and what they have afterwards.
//
// The first rank of the host listens on an abstract Unix socket (no file, gone with the process)
// named by user and rendezvous; the others connect. Where another user holds that name, the next of
// a few is taken. Each sends the read end of its liveness pipe, a pipe whose write end only it
// holds; the first rank hands the control page and all liveness pipes to everyone. Only processes
// of the same user are let in.
//
// The connections stay, as a star around the first rank, to pass descriptors of shared memory.
//
// Ownership: a LocalRendezvous owns all it names. Threads: one. Errors: kInput when the environment
// contradicts itself (two ranks 1, another world); kFault naming the missing ranks when they do not
// come in time; kPeer when rank 0 has called it off and says why itself.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/fd_channel.h"
#include "fsdp/comm/local/peer_wait.h"
#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// A rank among those of its host.
struct LocalRank {
  std::vector<int> ranks;  // of this host, ascending; places below count in it
  int place = 0;           // of this rank
  int world = 1;           // ranks on all hosts
  std::string rendezvous;  // the same for the ranks of this host in this run, and for no others

  int here() const { return static_cast<int>(ranks.size()); }
  int rank() const { return ranks[static_cast<size_t>(place)]; }
};

// All ranks on one host, as the environment told this one.
LocalRank only_host(const RankIdentity& identity);

// The star around the host's first rank. Waits look at the control page, so a death elsewhere ends
// them.
class PeerLinks {
 public:
  PeerLinks() = default;
  PeerLinks(LocalRank self, std::vector<UniqueFd> sockets)
      : self_(std::move(self)), sockets_(std::move(sockets)) {}

  const LocalRank& self() const { return self_; }
  // Every rank gives `mine` and gets a copy of everyone's, by place; its own is not valid.
  Result<std::vector<UniqueFd>> all_gather_fds(int mine, const PeerWait& wait,
                                               const CollectiveSite& site);
  // The first rank gives, the others get; its own result is not valid.
  Result<UniqueFd> broadcast_fd(int mine, const PeerWait& wait, const CollectiveSite& site);

 private:
  int socket_of(int peer) const { return sockets_[static_cast<size_t>(peer)].get(); }
  Status send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site);
  Result<UniqueFd> receive(int peer, const PeerWait& wait, const CollectiveSite& site);

  LocalRank self_;
  std::vector<UniqueFd> sockets_;  // by place; all but the first rank have only that of the first
};

struct LocalRendezvous {
  ControlPage page;
  PeerLinks links;
  std::vector<UniqueFd> liveness_pipes;  // read ends, by place
  UniqueFd own_liveness_pipe;            // write end: closing it without leaving is death
  int cores = 1;                         // that the ranks may use together
};

Result<LocalRendezvous> meet(const LocalRank& self, std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
