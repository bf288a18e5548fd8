// RendezvousPoint: the place at which rank 0 waits for the ranks of all hosts
// (host_rendezvous.h), and the patience that everybody has with a line.
//
// Ownership: rank 0's point owns its listener. Threads: any. Errors: kFault when the port cannot
// be taken within the timeout.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/stream_socket.h"

namespace ofsdp::fsdp {

inline constexpr std::chrono::milliseconds kHostRetry{50};

// Rank 0 has the listener; the others try the addresses in turn.
struct RendezvousPoint {
  std::vector<std::string> addresses;
  int port = 0;
  Listener listener;
};

// Returns where rank 0 and the other ranks of its host listen: at those of the addresses that are
// here, or where other hosts reach this one, if somebody else answers at those and passes it on.
std::vector<std::string> listening_addresses(const RendezvousPoint& point);

// From MASTER_ADDR and MASTER_PORT.
Result<RendezvousPoint> rendezvous_point(const RankIdentity& identity,
                                         std::chrono::seconds timeout);

// After how long a line that says nothing counts as cut.
std::chrono::seconds line_patience(std::chrono::seconds timeout);

}  // namespace ofsdp::fsdp
