#include "fsdp/connect.h"

#include <utility>

#include "fsdp/comm/hosts/host_communicator.h"
#include "fsdp/comm/hosts/mpi_payload.h"
#include "kernels/base/reject.h"

namespace ofsdp::fsdp {

Result<std::unique_ptr<Communicator>> connect_ranks(const RankIdentity& started,
                                                    std::chrono::seconds timeout) {
  if (!started.several_hosts()) return connect_local(started, timeout);
  RankIdentity identity = started;
  std::unique_ptr<MpiEngine> mpi;
  if (identity.engine != "tcp") {
    OFSDP_ASSIGN_OR_RETURN(mpi, open_mpi(identity));
    OFSDP_ASSIGN_OR_RETURN(JobSecret drawn, drawn_secret(*mpi));
    if (identity.secret.empty()) identity.secret = std::move(drawn);
  }
  if (mpi && identity.master_address.empty()) {
    OFSDP_ASSIGN_OR_RETURN(RendezvousPoint point, rendezvous_point(*mpi));
    return connect_hosts(identity, std::move(point), std::move(mpi), timeout);
  }
  OFSDP_REJECT_IF(
      identity.master_address.empty(),
      "MASTER_ADDR and MASTER_PORT are not set, expected them for ranks on several hosts: an "
      "address of rank 0's host and a free port there");
  OFSDP_ASSIGN_OR_RETURN(RendezvousPoint point, rendezvous_point(identity, timeout));
  return connect_hosts(identity, std::move(point), std::move(mpi), timeout);
}

}  // namespace ofsdp::fsdp
