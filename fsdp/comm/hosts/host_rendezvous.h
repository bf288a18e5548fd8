// The meeting of ranks on several hosts, and HostMap, the table of who runs on which host.
//
// Rank 0 listens at the master's port. Every other rank connects and sets a hello in a Store there:
// rank, host, and the port at which it listens itself. Once all are there, rank 0 sends everyone
// the table of addresses (host_table.h), with a random token for the run. Then each rank connects
// to a server on every other host (HostMap::server), and accepts the ranks that it serves.
//
// The connections to rank 0 stay until all have met: each rank reports progress there and gets
// the verdict. So all ranks give up at the same time, and rank 0 alone names the missing rank: one
// that has reported nothing, rather than one that waits for it.
//
// Every client must first prove the job's secret; until then it delays nobody (doorkeeper.h). Ranks
// listen only where rank 0's host is reached.
// Messages are checked before use: a hello carries a version and a hash of the run, a handshake the
// token.
//
// Errors: kInput if ranks contradict each other (two ranks 1, another world size, a wrong number of
// ranks on a host); kFault at rank 0, with the names of ranks that do not come in time, and at the
// first rank on each host if rank 0 itself is missing; kPeer if another rank reports the reason.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/hosts/host_table.h"
#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

// Hosts are numbered by their first rank; the place of a rank is an index among the ranks on the
// same host. Equal on all ranks of a run, except for `rank`.
struct HostMap {
  int rank = 0;                         // this rank
  std::vector<std::vector<int>> hosts;  // ranks on each host, ascending
  std::vector<int> host_of;             // by rank
  std::vector<int> place_of;            // by rank
  std::vector<std::string> names;       // by rank: name of the host, for messages

  // `host_of`: by rank, in any numbering.
  static HostMap make(int rank, const std::vector<int>& host_of, std::vector<std::string> names);

  int world() const { return static_cast<int>(host_of.size()); }
  int host() const { return host_of[static_cast<size_t>(rank)]; }
  int place() const { return place_of[static_cast<size_t>(rank)]; }
  const std::vector<int>& here() const { return hosts[static_cast<size_t>(host())]; }
  bool is_here(int other) const { return host_of[static_cast<size_t>(other)] == host(); }
  // Returns the rank of `host` that answers the requests of `asker`.
  int server(int host, int asker) const;
};

// A connection to another rank, for the messages of link_line.h.
struct HostConnection {
  int peer = 0;
  UniqueFd socket;
};

class RendezvousWatch;

struct HostsRendezvous {
  HostsRendezvous();
  ~HostsRendezvous();
  HostsRendezvous(HostsRendezvous&&) noexcept;

  // Returns the time left to meet, at least a second.
  std::chrono::seconds left() const;
  // Reports to rank 0 that this rank has met the others on this host, or the error `mine`. Returns
  // the verdict.
  Status conclude(Status mine);

  HostMap map;
  std::string rendezvous;                  // for the ranks on this host
  std::vector<int> pids;                   // by rank
  std::vector<HostConnection> servers;     // one for each other host, in host order
  std::vector<HostConnection> clients;     // ranks that this one serves
  std::unique_ptr<RendezvousWatch> watch;  // null once the meeting is concluded
};

Result<HostsRendezvous> meet_hosts(const RankIdentity& identity, RendezvousPoint point,
                                   std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
