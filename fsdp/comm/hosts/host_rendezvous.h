// How ranks on several hosts meet, and HostMap, which rank runs on which host.
//
// Rank 0 listens at the master's port. Every other rank connects and sets a hello in a Store there:
// rank, host, and the port at which it listens itself. Once all are there, rank 0 sends everyone
// the address table (HostTable), with a random token for the run. Then each rank connects to a
// server on every other host (HostMap::server), and accepts the ranks that it serves.
//
// The connections to rank 0 stay until all have met: each rank reports progress there and gets
// the verdict. So all ranks give up at the same time, and only rank 0 names the missing rank: one
// that has reported nothing, rather than one that waits for it.
//
// Every client must first prove the job's secret; until then it delays nobody (doorkeeper.h). Ranks
// listen only where rank 0's host is reached. Messages are checked before use: a hello carries a
// version and the run's hash, a handshake the token.
//
// Errors: kInput if ranks contradict each other (two ranks 1, another world size, too many or too
// few ranks on a host); kFault at rank 0, naming ranks that do not come in time, and at the first
// rank on each host if rank 0 itself is missing; kPeer if another rank reports the reason.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/store.h"
#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

// Hosts are numbered by their first rank; a rank's place is an index among the ranks on the same
// host. Equal on all ranks, except for `rank`.
struct HostMap {
  int rank = 0;                         // this rank
  std::vector<std::vector<int>> hosts;  // ranks on each host, ascending
  std::vector<int> host_of;             // by rank
  std::vector<int> place_of;            // by rank
  std::vector<std::string> names;       // by rank: the host's name, for messages

  // `host_of`: by rank, in any numbering.
  static HostMap make(int rank, const std::vector<int>& host_of, std::vector<std::string> names);

  int world() const { return static_cast<int>(host_of.size()); }
  int host() const { return host_of[static_cast<size_t>(rank)]; }
  int place() const { return place_of[static_cast<size_t>(rank)]; }
  const std::vector<int>& here() const { return hosts[static_cast<size_t>(host())]; }
  bool is_here(int other) const { return host_of[static_cast<size_t>(other)] == host(); }
  // Returns the rank on `host` that answers `asker`'s requests.
  int server(int host, int asker) const;
  // Returns how many connections to other hosts this rank makes and takes.
  int connections() const;
};

// Returns kInput if a process with `open` open files, of which it may have `most`, has no room for
// the map's connections.
Status check_open_files(const HostMap& map, int64_t open, int64_t most);

// The meeting's first half: RendezvousPoint is the address at which rank 0 waits, HostTable all
// ranks' addresses. Rank 0 gathers all hellos and sets the table in each rank's Store. Keys and
// values:
//
//   both         the challenge (doorkeeper.h), before anything else
//   to rank 0    hello    a HostHello
//   from rank 0  table    what table_value returns; without ranks the meeting is off
//   to rank 0    report   a RendezvousReport, newest first
//   from rank 0  verdict  a RendezvousVerdict
//   between two  knock    a HostHandshake, which comes back as the answer

inline constexpr std::chrono::milliseconds kHostRetry{50};
inline constexpr std::chrono::seconds kConnectPatience{2};  // for each address
inline constexpr const char* kMeetingPurpose = "meeting of ranks";

// Rank 0 has the listener; the others try the addresses in turn.
struct RendezvousPoint {
  std::vector<std::string> addresses;
  int port = 0;
  Listener listener;
};

// Makes the point from MASTER_ADDR and MASTER_PORT. Returns kFault if rank 0 cannot have the port
// within `timeout`.
Result<RendezvousPoint> rendezvous_point(const RankIdentity& identity,
                                         std::chrono::seconds timeout);

// Returns the addresses at which ranks on rank 0's host listen: the point's addresses that belong
// to this host. If none does, because another host forwards them, returns this host's outer
// addresses.
std::vector<std::string> listening_addresses(const RendezvousPoint& point);

// Returns the time after which a silent connection counts as cut.
std::chrono::seconds line_patience(std::chrono::seconds timeout);

struct HostHello {
  int rank = 0, world = 0, pid = 0, port = 0;
  int local_world = 0;       // ranks that it expects on the host; 0: any number
  uint64_t run = 0;          // hash over the world size and the run's id
  std::string machine = {};  // equal on ranks that share a host
  std::string name = {};     // the host's, for messages
};

struct HostEntry {
  int host = 0, pid = 0, port = 0;
  std::string address = {};  // empty if the rank is on rank 0's host
  std::string name = {};
};

struct RendezvousReport {
  enum Stage : int {
    kAbsent,
    kConnected,  // to all ranks that this one needs
    kMet,        // and has met the ranks on the same host
    kLate,       // has waited in vain: `text` names the missing rank
    kFailed,
    kInput,
  };
  int stage = kFailed;
  std::string text = {};
};

struct RendezvousVerdict {
  bool all_met = false;
};

struct HostHandshake {
  uint64_t token = 0;
  int from = 0, to = 0;
};

void list_fields(StoreFields& fields, RendezvousReport& report);
void list_fields(StoreFields& fields, RendezvousVerdict& verdict);
void list_fields(StoreFields& fields, HostHandshake& knock);

// A rank and the Store that this one shares with it.
struct HostPeer {
  int rank = 0;
  Store store;
};

struct HostTable {
  uint64_t token = 0;
  std::vector<HostEntry> entries;  // by rank
  std::string master;              // address at which this rank reached rank 0
  std::list<HostPeer> peers;       // rank 0; at rank 0, all others
  Listener listener;               // accepts connections to this rank
};

// The table as a message, in which each number of a rank has an array of its own and ranks that
// share address and name share the texts: about 25 bytes a rank. read_table fills token and
// entries, and returns false if `value` is no table of `world` ranks.
Json table_value(const HostTable& table);
bool read_table(const Json& value, int world, HostTable& table);

// Blocks until this rank has the table.
Result<HostTable> find_hosts(const RankIdentity& identity, const RendezvousPoint& point,
                             std::chrono::seconds timeout);

// A connection to another rank, for host_link.h's messages.
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
