// The star of connections around the host's first rank, once the ranks have met.
#include "fsdp/comm/local/rendezvous.h"

namespace ofsdp::fsdp {
namespace {

constexpr char kFdFollows = 'F';

// Failed, dead or left in order; a moment after a connection closes the control page says which.
Status why_closed(int peer, const PeerWait& wait, const CollectiveSite& site) {
  const std::atomic<uint64_t> never{0};
  return wait.until(never, 1, peer, site);
}

}  // namespace

Status PeerLinks::send(int peer, int fd, const PeerWait& wait, const CollectiveSite& site) {
  if (send_message(socket_of(peer), kFdFollows, fd)) return {};
  return why_closed(seat_.ranks[static_cast<size_t>(peer)], wait, site);
}

Result<UniqueFd> PeerLinks::receive(int peer, const PeerWait& wait, const CollectiveSite& site) {
  const int rank = seat_.ranks[static_cast<size_t>(peer)];
  const auto slices = wait.timeout() / PeerWait::kSlice + 1;
  WaitNote note = wait.note(rank);
  for (int64_t slice = 0; slice < slices; ++slice, note.look()) {
    char kind = 0;
    Received got = receive_message(socket_of(peer), kind, PeerWait::kSlice);
    if (got.kind == Received::Kind::kMessage) {
      note.met();
      if (!got.fd.valid()) return fault("rank {}: no descriptors left (ulimit -n)", seat_.rank());
      return std::move(got.fd);
    }
    if (got.kind == Received::Kind::kClosed) return why_closed(rank, wait, site);
    OFSDP_RETURN_IF_ERROR(wait.check(site));
  }
  note.late();
  return wait.late(rank, site);
}

Result<std::vector<UniqueFd>> PeerLinks::all_gather_fds(int mine, const PeerWait& wait,
                                                        const CollectiveSite& site) {
  const int place = seat_.place, here = seat_.here();
  std::vector<UniqueFd> all(static_cast<size_t>(here));
  if (place != 0) OFSDP_RETURN_IF_ERROR(send(0, mine, wait, site));
  for (int peer = 0; peer < here; ++peer) {
    if (peer == place) continue;
    OFSDP_ASSIGN_OR_RETURN(all[static_cast<size_t>(peer)],
                           receive(place == 0 ? peer : 0, wait, site));
  }
  if (place != 0) return all;
  for (int to = 1; to < here; ++to) {
    for (int of = 0; of < here; ++of) {
      const int fd = of == 0 ? mine : all[static_cast<size_t>(of)].get();
      if (of != to) OFSDP_RETURN_IF_ERROR(send(to, fd, wait, site));
    }
  }
  return all;
}

Result<UniqueFd> PeerLinks::broadcast_fd(int mine, const PeerWait& wait,
                                         const CollectiveSite& site) {
  if (seat_.place != 0) return receive(0, wait, site);
  for (int peer = 1; peer < seat_.here(); ++peer)
    OFSDP_RETURN_IF_ERROR(send(peer, mine, wait, site));
  return UniqueFd();
}

}  // namespace ofsdp::fsdp
