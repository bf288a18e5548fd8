// HostTable: who is where, the first half of a meeting of hosts (host_rendezvous.h). Rank 0
// gathers the hellos of all ranks and sets the table in the Store of each.
//
//   both         as in challenge.h, before anything else
//   to rank 0    hello    a HostHello
//   from rank 0  table    HostTable::entries and token, or without entries: called off
//   to rank 0    report   a RendezvousReport, newest first
//   from rank 0  verdict  a RendezvousVerdict
//   between two  knock    a HostHandshake, and back as the answer
//
// Ownership: owns the connections. Threads: one. Errors: those of host_rendezvous.h.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "fsdp/comm/hosts/rendezvous_point.h"
#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/store.h"

namespace ofsdp::fsdp {

inline constexpr std::chrono::seconds kConnectPatience{2};  // for each address
inline constexpr const char* kMeetingPurpose = "meeting of ranks";

struct HostHello {
  int rank = 0, world = 0, pid = 0, port = 0;
  int local_world = 0;       // ranks that it expects on its host; 0: any number
  uint64_t run = 0;          // hash of what the environment says of the run
  std::string machine = {};  // equal on ranks that share a host
  std::string name = {};     // of the host, for people
};

struct HostEntry {
  int host = 0, pid = 0, port = 0;
  std::string address = {};  // empty: where rank 0 is
  std::string name = {};
};

struct RendezvousReport {
  enum Stage : int {
    kAbsent,
    kConnected,  // to all that this rank needs
    kMet,        // those of its host too
    kLate,       // it has waited, and nobody came: `text` says for whom
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
  std::list<HostPeer> peers;       // rank 0; there: all others
  Listener listener;               // where this rank can be reached itself
};

// Until this rank has the table.
Result<HostTable> find_hosts(const RankIdentity& identity, const RendezvousPoint& point,
                             std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
