// How ranks of several hosts find each other, and what they hold afterwards.
//
// Rank 0 listens at the master's port; every other rank connects and says who it is, on which host,
// and at which port it can be reached itself. When all are there, rank 0 tells everybody who is
// where and a token that it has drawn for the run. Then each rank connects to the one rank of every
// other host that will answer it (HostMap::server), and takes in the ranks that it answers.
//
// What arrives is checked before it is used: messages have one size, begin with a magic number and a
// version, and carry what is common to the run; after the meeting, its token. Whoever does not fit
// is turned away, and holds up nobody for more than two seconds.
//
// Ownership: a HostsMeeting owns its connections. Threads: one. Errors: kInput when ranks contradict
// each other (two ranks 1, another world, too many or few on a host); kFault naming the missing
// ranks when they do not come in time; kPeer when another rank says why.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/hosts/host_map.h"
#include "fsdp/comm/hosts/stream_socket.h"
#include "fsdp/comm/rank_identity.h"

namespace ofsdp::fsdp {

// To another rank. What both may send is in link_wire.h.
struct HostConnection {
  int peer = 0;
  UniqueFd socket;
};

class MeetingWatch;

struct HostsMeeting {
  HostsMeeting();
  ~HostsMeeting();
  HostsMeeting(HostsMeeting&&) noexcept;

  HostMap map;
  std::string rendezvous;               // for the ranks of this host
  std::vector<int> pids;                // by rank
  std::vector<HostConnection> servers;  // one a host but this, in host order: they answer this rank
  std::vector<HostConnection> clients;  // ranks that this one answers
  std::unique_ptr<MeetingWatch> watch;  // to be concluded when the ranks of this host have met
};

// Where rank 0 waits. Rank 0 has the listener; the others try the addresses in turn.
struct MeetingPoint {
  std::vector<std::string> addresses;
  int port = 0;
  UniqueFd listener;
};

// From MASTER_ADDR and MASTER_PORT.
Result<MeetingPoint> meeting_point(const RankIdentity& identity, std::chrono::seconds timeout);

Result<HostsMeeting> meet_hosts(const RankIdentity& identity, MeetingPoint point,
                                std::chrono::seconds timeout);

// After how long a line that says nothing counts as cut.
std::chrono::seconds line_patience(std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
