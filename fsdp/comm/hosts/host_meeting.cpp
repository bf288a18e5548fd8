#include "fsdp/comm/hosts/host_meeting.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_name.h"
#include "fsdp/comm/hosts/host_meeting_wire.h"
#include "fsdp/comm/hosts/meeting_watch.h"

namespace ofsdp::fsdp {
namespace {

constexpr std::chrono::seconds kGrace{5};  // rank 0 is the one to say that ranks are missing

// Ranks share a host when they can pass descriptors over an abstract socket: one kernel and one
// network namespace.
std::string machine_of(const RankIdentity& identity) {
  if (identity.node_rank >= 0) return format_text("host {}", identity.node_rank);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  stat("/proc/self/ns/net", &net);
  return format_text("{}.{}", boot, net.st_ino);
}

uint64_t run_number(const RankIdentity& identity) {  // FNV-1a: the same on every host
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : format_text("{}/{}", identity.world, identity.run_id)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// On each host the first rank speaks for all.
Status silent_unless_first(const RankIdentity& identity, Status status) {
  if (identity.local_rank == 0) return status;
  return {ErrorKind::kPeer, status.message()};
}

Result<UniqueFd> reach_master(const RankIdentity& identity, const MeetingPoint& point,
                              std::chrono::seconds timeout, std::string& address) {
  const auto deadline = StreamClock::now() + timeout;
  std::string why;
  while (true) {
    for (const std::string& next : point.addresses) {
      const auto patience = std::min(deadline, StreamClock::now() + kStrangerPatience);
      auto socket = connect_to(next, point.port, patience);
      address = next;
      if (socket.ok()) return socket;
      why = socket.error().message();
    }
    if (StreamClock::now() >= deadline) break;
    std::this_thread::sleep_for(kHostRetry);
  }
  return silent_unless_first(
      identity,
      fault("rank 0 did not arrive at {}:{} within {} s: rank {} of {} cannot reach it "
            "({})",
            point.addresses[0], point.port, timeout.count(), identity.rank, identity.world, why));
}

// The connections after the meeting.
class Connecting {
 public:
  Connecting(HostsMeeting& meeting, const HostTable& table)
      : meeting_(meeting),
        table_(table),
        watch_(*meeting.watch),
        timeout_(watch_.timeout()),
        deadline_(watch_.deadline()) {}

  // Everybody knocks first and lets in afterwards, so nobody waits for one who waits.
  Status connect_all(int listener) {
    const HostMap& map = meeting_.map;
    for (int host = 0; host < static_cast<int>(map.hosts.size()); ++host) {
      if (host != map.host()) OFSDP_RETURN_IF_ERROR(knock(map.server(host, map.rank)));
    }
    const int expected = clients();
    while (static_cast<int>(meeting_.clients.size()) < expected) {
      OFSDP_RETURN_IF_ERROR(let_in(listener, expected));
    }
    for (const HostConnection& server : meeting_.servers) {
      HostKnock answer;
      OFSDP_RETURN_IF_ERROR(watch_.readable(server.socket.get()));
      if (!receive_whole(server.socket.get(), &answer, sizeof answer, deadline_) ||
          answer.token != table_.token) {
        return lost(server.peer);
      }
    }
    return {};
  }

 private:
  int clients() const {
    const HostMap& map = meeting_.map;
    int count = 0;
    for (int r = 0; r < map.world(); ++r) {
      count += !map.is_here(r) && map.server(map.host(), r) == map.rank;
    }
    return count;
  }

  Status knock(int server) {
    const HostEntry& entry = table_.entries[static_cast<size_t>(server)];
    const std::string told = get_text(entry.address);
    const std::string& address = told.empty() ? table_.master : told;
    auto connected = connect_to(address, entry.port, deadline_);
    if (!connected.ok()) {
      return fault("{} cannot be reached from rank {}: {}", watch_.who(server), meeting_.map.rank,
                   connected.error().message());
    }
    UniqueFd socket = std::move(*connected);
    tune(socket.get(), line_patience(timeout_));
    const HostKnock mine{kHostMagic, table_.token, meeting_.map.rank, server};
    if (!send_whole(socket.get(), &mine, sizeof mine, deadline_)) return lost(server);
    meeting_.servers.push_back({server, std::move(socket)});
    return {};
  }

  Status let_in(int listener, int expected) {
    OFSDP_RETURN_IF_ERROR(watch_.readable(listener));
    if (watch_.is_late()) {
      return fault("{} of {} ranks connected to {} within {} s", meeting_.clients.size(), expected,
                   watch_.who(meeting_.map.rank), timeout_.count());
    }
    UniqueFd guest = accept_one(listener, StreamClock::now());
    HostKnock knock;
    const auto patience = std::min(deadline_, StreamClock::now() + kStrangerPatience);
    if (!guest.valid() || !receive_whole(guest.get(), &knock, sizeof knock, patience)) return {};
    const HostMap& map = meeting_.map;
    const bool ours = knock.magic == kHostMagic && knock.token == table_.token &&
                      knock.to == map.rank && knock.from >= 0 && knock.from < map.world() &&
                      !map.is_here(knock.from) && map.server(map.host(), knock.from) == map.rank;
    const auto same = [&](const HostConnection& c) { return c.peer == knock.from; };
    if (!ours || std::ranges::any_of(meeting_.clients, same)) return {};
    tune(guest.get(), line_patience(timeout_));
    if (!send_whole(guest.get(), &knock, sizeof knock, deadline_)) return lost(knock.from);
    meeting_.clients.push_back({knock.from, std::move(guest)});
    return {};
  }

  Status lost(int peer) const {
    if (watch_.is_late()) {
      return fault("{} did not answer rank {} within {} s", watch_.who(peer), meeting_.map.rank,
                   timeout_.count());
    }
    return fault("{} ended while rank {} connected to it", watch_.who(peer), meeting_.map.rank);
  }

  HostsMeeting& meeting_;
  const HostTable& table_;
  MeetingWatch& watch_;
  std::chrono::seconds timeout_;
  StreamClock::time_point deadline_;
};

std::unique_ptr<MeetingWatch> watch_over(const HostsMeeting& meeting, HostTable& table,
                                         const MeetingPoint& point, std::chrono::seconds timeout) {
  std::vector<std::string> who;
  for (size_t r = 0; r < meeting.pids.size(); ++r) {
    who.push_back(format_text("rank {} (pid {} on {})", r, meeting.pids[r], meeting.map.names[r]));
  }
  const std::string& address = point.addresses.empty() ? table.master : point.addresses[0];
  return std::make_unique<MeetingWatch>(meeting.map, std::move(table.sockets), std::move(who),
                                        format_text("{}:{}", address, point.port), timeout);
}

}  // namespace

HostsMeeting::HostsMeeting() = default;
HostsMeeting::~HostsMeeting() = default;
HostsMeeting::HostsMeeting(HostsMeeting&&) noexcept = default;

std::chrono::seconds line_patience(std::chrono::seconds timeout) {
  return std::clamp(timeout / 3, std::chrono::seconds(1), std::chrono::seconds(20));
}

HostHello host_hello(const RankIdentity& identity, int port) {
  HostHello hello;
  hello.rank = identity.rank;
  hello.world = identity.world;
  hello.local_world = identity.node_rank >= 0 ? 0 : identity.local_world;
  const bool told = identity.started_by == "torchrun" || identity.started_by == "fsdp-run";
  if (told) hello.local_world = identity.local_world;
  hello.pid = getpid();
  hello.port = port;
  hello.run = run_number(identity);
  put_text(hello.machine, machine_of(identity));
  put_text(hello.name, host_name());
  return hello;
}

Result<HostTable> visit_hosts(const RankIdentity& identity, const MeetingPoint& point,
                              const HostHello& mine, std::chrono::seconds timeout) {
  HostTable table;
  OFSDP_ASSIGN_OR_RETURN(UniqueFd socket, reach_master(identity, point, timeout, table.master));
  tune(socket.get(), line_patience(timeout));
  const auto deadline = StreamClock::now() + timeout + kGrace;
  HostWelcome welcome;
  const bool heard = send_whole(socket.get(), &mine, sizeof mine, deadline) &&
                     receive_whole(socket.get(), &welcome, sizeof welcome, deadline);
  if (!heard && StreamClock::now() >= deadline) {
    return silent_unless_first(
        identity, fault("rank 0 at {}:{} did not answer rank {} within {} s", table.master,
                        point.port, identity.rank, timeout.count()));
  }
  if (!heard || welcome.magic != kHostMagic) {
    return silent_unless_first(identity,
                               fault("rank 0 at {}:{} ended or is of another run: rank {} of {} "
                                     "was turned away",
                                     table.master, point.port, identity.rank, identity.world));
  }
  if (welcome.go == 0) return Status(ErrorKind::kPeer, "rank 0 called the meeting off");
  table.token = welcome.token;
  table.entries.resize(static_cast<size_t>(identity.world));
  if (!receive_whole(socket.get(), table.entries.data(), table.entries.size() * sizeof(HostEntry),
                     deadline)) {
    return Status(ErrorKind::kPeer, "rank 0 has ended");
  }
  table.sockets.push_back({0, std::move(socket)});
  return table;
}

Result<MeetingPoint> meeting_point(const RankIdentity& identity, std::chrono::seconds timeout) {
  MeetingPoint point{{identity.master_address}, identity.master_port, {}};
  if (identity.rank != 0) return point;
  const auto deadline = StreamClock::now() + timeout;
  while (true) {
    auto listener = listen_on(point.port);
    if (listener.ok()) {
      point.listener = std::move(*listener);
      return point;
    }
    if (StreamClock::now() >= deadline) {
      return fault("rank 0: MASTER_PORT={}: {}", identity.master_port, listener.error().message());
    }
    std::this_thread::sleep_for(kHostRetry);
  }
}

Result<HostsMeeting> meet_hosts(const RankIdentity& identity, MeetingPoint point,
                                std::chrono::seconds timeout) {
  if (identity.world > kMostRanks) {
    return input_error("{} ranks, expected at most {}", identity.world, kMostRanks);
  }
  int port = 0;
  OFSDP_ASSIGN_OR_RETURN(const UniqueFd listener, listen_on(port));
  const HostHello mine = host_hello(identity, port);
  OFSDP_ASSIGN_OR_RETURN(HostTable table, identity.rank == 0
                                              ? gather_hosts(identity, point, mine, timeout)
                                              : visit_hosts(identity, point, mine, timeout));
  HostsMeeting meeting;
  std::vector<int> host_of;
  std::vector<std::string> names;
  for (const HostEntry& entry : table.entries) {
    host_of.push_back(entry.host);
    names.push_back(get_text(entry.name));
    meeting.pids.push_back(entry.pid);
  }
  meeting.map = HostMap::make(identity.rank, host_of, std::move(names));
  meeting.rendezvous = format_text("hosts-{:016x}-{}", table.token, meeting.map.host());
  meeting.watch = watch_over(meeting, table, point, timeout);
  Status connected = Connecting(meeting, table).connect_all(listener.get());
  if (!connected.ok()) return meeting.watch->conclude(std::move(connected));
  meeting.watch->connected();
  return meeting;
}

}  // namespace ofsdp::fsdp
