// How ranks of several hosts find each other, and what they hold afterwards.
//
// Rank 0 listens at the master's port. Every other rank connects and sets its hello in a Store
// there: who it is, on which host, and at which port it can be reached itself. When all are there,
// rank 0 sets the table of who is where, with a token that it has drawn for the run. Then each
// rank connects to the one rank of every other host that will answer it (HostMap::server), and
// accepts the ranks that it answers.
//
// The connections to rank 0 stay until all have met: each rank reports there how far it has come,
// and gets the verdict. So nobody waits for a rank that does not come longer than all do, and rank
// 0 alone says which rank that is: one that has said nothing, rather than one that waits for it.
//
// Whoever connects proves the job's secret first (challenge.h); those outside wait together, and
// hold up nobody (doorkeeper.h). Ranks listen where rank 0's host is reached, and nowhere else.
// Messages are checked before they are used: a hello carries a version and what is common to the
// run, a handshake its token.
//
// Ownership: a HostsRendezvous owns its connections. Threads: one. Errors: kInput when ranks
// contradict each other (two ranks 1, another world, too many or few on a host); kFault at rank 0
// naming the ranks that do not come in time, and at the first rank of each host when rank 0 itself
// is missing; kPeer when another rank says why.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/hosts/host_map.h"
#include "fsdp/comm/hosts/rendezvous_point.h"
#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

// To another rank. What both may send is in link_wire.h.
struct HostConnection {
  int peer = 0;
  UniqueFd socket;
};

class RendezvousWatch;

struct HostsRendezvous {
  HostsRendezvous();
  ~HostsRendezvous();
  HostsRendezvous(HostsRendezvous&&) noexcept;

  // The time that is left to meet, at least a second.
  std::chrono::seconds left() const;
  // Tells rank 0 that this rank has met those of its host, or why not. What becomes of the meeting.
  Status conclude(Status mine);

  HostMap map;
  std::string rendezvous;               // for the ranks of this host
  std::vector<int> pids;                // by rank
  std::vector<HostConnection> servers;  // one a host but this, in host order: they answer this rank
  std::vector<HostConnection> clients;  // ranks that this one answers
  std::unique_ptr<RendezvousWatch> watch;  // null once the meeting is concluded
};

Result<HostsRendezvous> meet_hosts(const RankIdentity& identity, RendezvousPoint point,
                                   std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
