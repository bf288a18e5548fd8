#include "fsdp/comm/hosts/rendezvous_point.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "kernels/base/reject.h"

namespace ofsdp::fsdp {

std::chrono::seconds line_patience(std::chrono::seconds timeout) {
  return std::clamp(timeout / 3, std::chrono::seconds(1), std::chrono::seconds(20));
}

std::vector<std::string> listening_addresses(const RendezvousPoint& point) {
  std::vector<std::string> all;
  for (const std::string& host : point.addresses) {
    for (std::string& address : addresses_here(host)) {
      if (std::ranges::find(all, address) == all.end()) all.push_back(std::move(address));
    }
  }
  if (all.empty()) all = outer_addresses();
  if (all.empty()) all = {"127.0.0.1"};
  return all;
}

Result<RendezvousPoint> rendezvous_point(const RankIdentity& identity,
                                         std::chrono::seconds timeout) {
  RendezvousPoint point{{identity.master_address}, identity.master_port, {}};
  if (identity.rank != 0) return point;
  const auto deadline = StreamClock::now() + timeout;
  const PortUse use = identity.started_by == "fsdp-run" ? PortUse::kHeld : PortUse::kAlone;
  while (true) {
    auto listener = Listener::open(listening_addresses(point), point.port, use);
    if (listener.ok()) {
      point.listener = std::move(*listener);
      return point;
    }
    OFSDP_FAULT_IF(StreamClock::now() >= deadline, "rank 0: MASTER_PORT={}: {}",
                   identity.master_port, listener.error().message());
    std::this_thread::sleep_for(kHostRetry);
  }
}

}  // namespace ofsdp::fsdp
