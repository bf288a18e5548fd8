#include "fsdp/rendezvous.h"

#include <sys/socket.h>

#include <thread>

#include "fsdp/rendezvous_wire.h"

namespace ofsdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCallOffGrace{5};  // rank 0 is the one to say that ranks are missing

Result<UniqueFd> connect_to_rank0(const RankIdentity& identity, std::chrono::seconds timeout) {
  const Address address = address_of(identity.rendezvous);
  const auto deadline = Clock::now() + timeout;
  while (true) {
    UniqueFd socket = new_socket();
    if (connect(socket.get(), address.get(), address.bytes) == 0 && same_user(socket.get())) {
      limit_sends(socket.get(), timeout);
      return socket;
    }
    if (Clock::now() >= deadline) {
      return fault(
          "rank 0 did not arrive at rendezvous {} within {} s: rank {} of {} cannot reach it",
          identity.rendezvous, timeout.count(), identity.rank, identity.world);
    }
    std::this_thread::sleep_for(kRendezvousRetry);
  }
}

// Rank 0 ended or called the meeting off. One rank is enough to say so, and rank 0 if it can.
Status no_welcome(const RankIdentity& identity) {
  if (identity.rank != 1) return {ErrorKind::kPeer, "rank 0 has ended"};
  return fault("rank 0 ended before all {} ranks had met at rendezvous {}", identity.world,
               identity.rendezvous);
}

Status receive_lifelines(Meeting& meeting, int socket, const RankIdentity& identity,
                         std::chrono::seconds timeout) {
  for (int of = 0; of < identity.world; ++of) {
    if (of == identity.rank) continue;
    uint64_t magic = 0;
    Received got = receive_message(socket, magic, timeout);
    if (got.kind != Received::Kind::kMessage) return no_welcome(identity);
    if (!got.fd.valid()) return fault("rank {}: no descriptors left (ulimit -n)", identity.rank);
    meeting.lifelines[static_cast<size_t>(of)] = std::move(got.fd);
  }
  return {};
}

Result<Meeting> visit(const RankIdentity& identity, std::chrono::seconds timeout) {
  Meeting meeting;
  OFSDP_RETURN_IF_ERROR(open_lifeline(meeting, identity.rank, identity.world));
  OFSDP_ASSIGN_OR_RETURN(UniqueFd socket, connect_to_rank0(identity, timeout));
  const int lifeline = meeting.lifelines[static_cast<size_t>(identity.rank)].get();
  if (!send_message(socket.get(), hello_of(identity), lifeline)) return no_welcome(identity);
  Welcome welcome{};
  Received got = receive_message(socket.get(), welcome, timeout + kCallOffGrace);
  if (got.kind != Received::Kind::kMessage) return no_welcome(identity);
  if (welcome.go == 0) return Status(ErrorKind::kPeer, "rank 0 called the rendezvous off");
  OFSDP_ASSIGN_OR_RETURN(meeting.page, ControlPage::map(std::move(got.fd), identity.world));
  OFSDP_RETURN_IF_ERROR(receive_lifelines(meeting, socket.get(), identity, timeout));
  meeting.cores = welcome.cores;
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  meeting.links = PeerLinks(identity.rank, identity.world, std::move(sockets));
  return meeting;
}

}  // namespace

Result<Meeting> meet(const RankIdentity& identity, std::chrono::seconds timeout) {
  if (identity.world > kMostRanks) {
    return input_error("{} ranks on one host, expected at most {}", identity.world, kMostRanks);
  }
  if (identity.rank == 0) return host_meeting(identity, timeout);
  return visit(identity, timeout);
}

}  // namespace ofsdp
