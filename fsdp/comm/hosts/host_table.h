// The first half of a meeting (host_rendezvous.h): RendezvousPoint is the address at which
// rank 0 waits, HostTable the addresses of all ranks. Rank 0 gathers the hellos of all ranks and
// sets the table in the Store of each. Keys and values:
//
//   both         the challenge (doorkeeper.h), before anything else
//   to rank 0    hello    a HostHello
//   from rank 0  table    HostTable::entries and token; without entries the meeting is off
//   to rank 0    report   a RendezvousReport, newest first
//   from rank 0  verdict  a RendezvousVerdict
//   between two  knock    a HostHandshake, which comes back as the answer
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/store.h"
#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

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
  uint64_t run = 0;          // hash of the world size and the run's id
  std::string machine = {};  // equal on ranks that share a host
  std::string name = {};     // of the host, for messages
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

// Blocks until this rank has the table.
Result<HostTable> find_hosts(const RankIdentity& identity, const RendezvousPoint& point,
                             std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
