#include "fsdp/comm/local/rendezvous.h"

#include <sys/socket.h>

#include <numeric>
#include <thread>

#include "fsdp/comm/local/rendezvous_wire.h"

namespace ofsdp::fsdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSpeakerHolds{500};
constexpr std::chrono::seconds kCallOffGrace{5};  // the first rank says which are missing

// The first rank has not come. Of those whose time is up at about the same moment the one that gets
// a name says so; it holds the name until the others have seen that.
Status absent_first(const LocalSeat& seat, std::chrono::seconds timeout) {
  const Address speaker = address_of(seat.rendezvous + " speaks");
  const UniqueFd name = new_socket();
  if (bind(name.get(), speaker.get(), speaker.bytes) != 0) {
    return {ErrorKind::kPeer, format_text("rank {} is not there", seat.ranks[0])};
  }
  std::this_thread::sleep_for(kSpeakerHolds);
  return fault("rank {} did not arrive at rendezvous {} within {} s: rank {} of {} cannot reach it",
               seat.ranks[0], seat.rendezvous, timeout.count(), seat.rank(), seat.here());
}

Result<UniqueFd> connect_to_first(const LocalSeat& seat, std::chrono::seconds timeout) {
  const Address address = address_of(seat.rendezvous);
  const auto deadline = Clock::now() + timeout;
  while (true) {
    UniqueFd socket = new_socket();
    if (connect(socket.get(), address.get(), address.bytes) == 0 && same_user(socket.get())) {
      limit_sends(socket.get(), timeout);
      return socket;
    }
    if (Clock::now() >= deadline) return absent_first(seat, timeout);
    std::this_thread::sleep_for(kRendezvousRetry);
  }
}

// The first rank ended or called the meeting off. One rank is enough to say so, and the first if
// it can.
Status no_welcome(const LocalSeat& seat) {
  if (seat.place != 1) return {ErrorKind::kPeer, format_text("rank {} has ended", seat.ranks[0])};
  return fault("rank {} ended before all {} ranks had met at rendezvous {}", seat.ranks[0],
               seat.here(), seat.rendezvous);
}

Status receive_lifelines(Meeting& meeting, int socket, const LocalSeat& seat,
                         std::chrono::seconds timeout) {
  for (int of = 0; of < seat.here(); ++of) {
    if (of == seat.place) continue;
    uint64_t magic = 0;
    Received got = receive_message(socket, magic, timeout);
    if (got.kind != Received::Kind::kMessage) return no_welcome(seat);
    if (!got.fd.valid()) return fault("rank {}: no descriptors left (ulimit -n)", seat.rank());
    meeting.lifelines[static_cast<size_t>(of)] = std::move(got.fd);
  }
  return {};
}

Result<Meeting> visit(const LocalSeat& seat, std::chrono::seconds timeout) {
  Meeting meeting;
  OFSDP_RETURN_IF_ERROR(open_lifeline(meeting, seat));
  OFSDP_ASSIGN_OR_RETURN(UniqueFd socket, connect_to_first(seat, timeout));
  const int lifeline = meeting.lifelines[static_cast<size_t>(seat.place)].get();
  if (!send_message(socket.get(), hello_of(seat), lifeline)) return no_welcome(seat);
  Welcome welcome{};
  Received got = receive_message(socket.get(), welcome, timeout + kCallOffGrace);
  if (got.kind != Received::Kind::kMessage) return no_welcome(seat);
  if (welcome.go == 0) return Status(ErrorKind::kPeer, "the first rank called the rendezvous off");
  OFSDP_ASSIGN_OR_RETURN(meeting.page, ControlPage::map(std::move(got.fd), seat.world));
  OFSDP_RETURN_IF_ERROR(receive_lifelines(meeting, socket.get(), seat, timeout));
  meeting.cores = welcome.cores;
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  meeting.links = PeerLinks(seat, std::move(sockets));
  return meeting;
}

}  // namespace

LocalSeat only_host(const RankIdentity& identity) {
  LocalSeat seat{.ranks = std::vector<int>(static_cast<size_t>(identity.world)),
                 .place = identity.rank,
                 .world = identity.world,
                 .rendezvous = identity.rendezvous};
  std::iota(seat.ranks.begin(), seat.ranks.end(), 0);
  return seat;
}

Result<Meeting> meet(const LocalSeat& seat, std::chrono::seconds timeout) {
  if (seat.world > kMostRanks) {
    return input_error("{} ranks, expected at most {}", seat.world, kMostRanks);
  }
  return seat.place == 0 ? host_meeting(seat, timeout) : visit(seat, timeout);
}

}  // namespace ofsdp::fsdp
