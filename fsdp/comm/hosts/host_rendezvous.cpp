#include "fsdp/comm/hosts/host_rendezvous.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/store/doorkeeper.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

HostMap HostMap::make(int rank, const std::vector<int>& host_of, std::vector<std::string> names) {
  HostMap map;
  map.rank = rank;
  map.names = std::move(names);
  std::map<int, int> numbered;
  for (size_t r = 0; r < host_of.size(); ++r) {
    const auto [found, first] = numbered.emplace(host_of[r], static_cast<int>(map.hosts.size()));
    if (first) map.hosts.emplace_back();
    auto& ranks = map.hosts[static_cast<size_t>(found->second)];
    map.host_of.push_back(found->second);
    map.place_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  return map;
}

int HostMap::server(int host, int asker) const {
  const auto& ranks = hosts[static_cast<size_t>(host)];
  return ranks[static_cast<size_t>(place_of[static_cast<size_t>(asker)]) % ranks.size()];
}

int HostMap::connections() const {
  int count = static_cast<int>(hosts.size()) - 1;
  for (int asker = 0; asker < world(); ++asker) {
    count += !is_here(asker) && server(host(), asker) == rank ? 1 : 0;
  }
  return count;
}

Status check_open_files(const HostMap& map, int64_t open, int64_t most) {
  // A handshake that is refused, a log, the files of a checkpoint; and, for each other rank on the
  // host, its liveness pipe, the first rank's socket and a segment that is being mapped.
  constexpr int64_t kOthers = 64, kEachHere = 3;
  const auto others_here = static_cast<int64_t>(map.here().size()) - 1;
  const int64_t least = open + map.connections() + kOthers + kEachHere * others_here;
  if (map.hosts.size() < 2 || least <= most) return {};
  return input_error(
      "rank {}: {} connections to {} other hosts: expected ulimit -n of at least {}, "
      "found {}",
      map.rank, map.connections(), map.hosts.size() - 1, least, most);
}

namespace {

// Returns how many files this process has open.
int64_t open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  return error ? 0 : std::distance(entries, std::filesystem::directory_iterator());
}

Status check_open_files(const HostMap& map) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return {};
  return check_open_files(map, open_files(), static_cast<int64_t>(files.rlim_cur));
}

// After the deadline rank 0 still waits for reports, and the others longer for the verdict.
constexpr std::chrono::seconds kLastReports{2};
constexpr std::chrono::seconds kVerdict{5};
constexpr const char* kLinkPurpose = "link of ranks";

}  // namespace

// A meeting's end: rank 0 collects all ranks' reports, the others await the verdict.
class RendezvousWatch {
 public:
  // `who` has a text for each rank, "rank 2 (pid 7 on b)"; `point` is the meeting's address.
  RendezvousWatch(HostMap map, std::list<HostPeer> peers, std::vector<std::string> who,
                  std::string point, std::chrono::seconds timeout)
      : map_(std::move(map)),
        peers_(std::move(peers)),
        who_(std::move(who)),
        point_(std::move(point)),
        timeout_(timeout) {
    stages_.resize(who_.size(), RendezvousReport::kAbsent);
    late_.resize(who_.size());
  }

  const std::string& who(int rank) const { return who_[static_cast<size_t>(rank)]; }
  StreamClock::time_point deadline() const { return deadline_; }
  std::chrono::seconds timeout() const { return timeout_; }
  bool is_late() const { return StreamClock::now() >= deadline_; }

  std::vector<Store*> stores() {
    std::vector<Store*> all;
    for (HostPeer& peer : peers_) all.push_back(&peer.store);
    return all;
  }

  // Reads reports or the verdict. Returns an error if the meeting is off.
  Status take_news() {
    if (over_) return {};
    for (HostPeer& peer : peers_) {
      Status status = map_.rank == 0 ? take_report(peer) : take_verdict(peer);
      if (status.ok()) continue;
      over_ = true;
      if (map_.rank == 0) send_verdict(false);
      return status;
    }
    return {};
  }

  // Blocks until there is news, at most until the deadline.
  Status wait() {
    wait_for_news(stores(), -1, deadline_);
    return take_news();
  }

  // Reports that this rank has all connections.
  void connected() {
    stages_[static_cast<size_t>(map_.rank)] = RendezvousReport::kConnected;
    if (map_.rank != 0) report(RendezvousReport::kConnected, {});
  }

  Status conclude(Status mine) {
    if (over_) return mine;
    return map_.rank == 0 ? conclude_all(std::move(mine)) : await_verdict(mine);
  }

 private:
  Status take_report(HostPeer& from) {
    const auto said = from.store.take("report");
    if (!said && !from.store.closed()) return {};
    const auto report = said ? from_value<RendezvousReport>(*said) : std::nullopt;
    if (!report) return fault("{} ended before all ranks had met at {}", who(from.rank), point_);
    const auto rank = static_cast<size_t>(from.rank);
    if (report->stage == RendezvousReport::kInput) return input_error("{}", report->text);
    if (report->stage == RendezvousReport::kFailed) return fault("{}", report->text);
    if (report->stage != RendezvousReport::kLate) {
      stages_[rank] = report->stage;
      return {};
    }
    late_[rank] = true;
    if (late_text_.empty()) late_text_ = report->text;
    return {};
  }

  Status take_verdict(HostPeer& from) {
    const auto said = from.store.take("verdict");
    if (!said && !from.store.closed()) return {};
    const auto verdict = said ? from_value<RendezvousVerdict>(*said) : std::nullopt;
    if (!verdict)
      return silent_unless_first_here(
          fault("{} ended before all ranks had met at {}", who(0), point_));
    if (!verdict->all_met) return {ErrorKind::kPeer, "rank 0 called the meeting off"};
    over_ = true;
    return {};
  }

  // Only the first rank on each host may report that rank 0 is missing.
  Status silent_unless_first_here(Status status) const {
    if (map_.place() == 0) return status;
    return {ErrorKind::kPeer, status.message()};
  }

  void report(RendezvousReport::Stage stage, const Status& status) {
    const std::string text = status.ok() ? "" : status.message();
    peers_.front().store.set("report", to_value(RendezvousReport{stage, text}));
  }

  void send_verdict(bool all_met) {
    for (HostPeer& peer : peers_) peer.store.set("verdict", to_value(RendezvousVerdict{all_met}));
  }

  Status await_verdict(const Status& mine) {
    auto stage = RendezvousReport::kMet;
    if (!mine.ok()) {
      stage =
          mine.kind() == ErrorKind::kInput ? RendezvousReport::kInput : RendezvousReport::kFailed;
      if (is_late() || mine.kind() == ErrorKind::kPeer) stage = RendezvousReport::kLate;
    }
    report(stage, mine);
    deadline_ = std::max(deadline_, StreamClock::now()) + kVerdict;
    while (!over_ && !is_late()) OFSDP_RETURN_IF_ERROR(wait());
    if (over_ && mine.ok()) return {};
    return silent_unless_first_here(
        fault("{} did not say within {} s whether all ranks had met at {}", who(0),
              timeout_.count(), point_));
  }

  Status conclude_all(Status mine) {
    over_ = !mine.ok() && !is_late();
    if (mine.ok()) stages_[0] = RendezvousReport::kMet;
    late_[0] = !mine.ok();
    if (!mine.ok() && late_text_.empty()) late_text_ = mine.message();
    deadline_ = std::max(deadline_, StreamClock::now()) + kLastReports;
    while (!over_ && !is_late() && !all_have_spoken()) OFSDP_RETURN_IF_ERROR(wait());
    const auto met = [](int stage) { return stage == RendezvousReport::kMet; };
    const bool all = std::ranges::all_of(stages_, met);
    send_verdict(all);
    if (all || over_) return mine;
    over_ = true;
    return missing();
  }

  bool all_have_spoken() const {
    for (size_t r = 0; r < stages_.size(); ++r) {
      if (stages_[r] != RendezvousReport::kMet && !late_[r]) return false;
    }
    return true;
  }

  // Names the ranks that have not connected. If all have, repeats a late rank's first report;
  // without one, the first rank on a host is to blame, since the others there wait for it.
  Status missing() const {
    std::vector<std::string> absent, silent;
    const auto connected = map_.world() - std::ranges::count(stages_, RendezvousReport::kAbsent);
    for (int r = 0; r < map_.world(); ++r) {
      const auto index = static_cast<size_t>(r);
      if (late_[index] || stages_[index] == RendezvousReport::kMet) continue;
      if (stages_[index] == RendezvousReport::kAbsent) absent.push_back(who(r));
      if (map_.place_of[index] == 0) silent.push_back(who(r));
    }
    if (absent.empty() && !late_text_.empty()) return fault("{}", late_text_);
    return fault("{} did not arrive at {} within {} s: {} of {} ranks are connected",
                 joined(absent.empty() ? silent : absent, ", "), point_, timeout_.count(),
                 connected, map_.world());
  }

  const HostMap map_;
  std::list<HostPeer> peers_;
  const std::vector<std::string> who_;
  const std::string point_;
  const std::chrono::seconds timeout_;
  StreamClock::time_point deadline_ = StreamClock::now() + timeout_;
  bool over_ = false;
  // Only rank 0 uses these, by rank.
  std::vector<int> stages_;  // RendezvousReport::Stage
  std::vector<bool> late_;   // the rank has reported that nobody came
  std::string late_text_;    // the first such report
};

namespace {

// Makes the connections between hosts.
class Connecting {
 public:
  Connecting(HostsRendezvous& meeting, const HostTable& table, const JobSecret& secret)
      : meeting_(meeting),
        table_(table),
        secret_(secret),
        door_(table.listener, secret, kLinkPurpose, "handshake", clients()) {}

  // Every rank connects and accepts at the same time, so no two wait for each other.
  Status connect_all() {
    for (int host = 0; host < static_cast<int>(map_.hosts.size()); ++host) {
      if (host != map_.host()) OFSDP_RETURN_IF_ERROR(knock(map_.server(host, map_.rank)));
    }
    const auto expected = static_cast<size_t>(clients());
    while (meeting_.clients.size() < expected || !all_have_answered()) {
      OFSDP_FAULT_IF(watch_.is_late() && meeting_.clients.size() < expected,
                     "{} of {} ranks connected to {} within {} s", meeting_.clients.size(),
                     expected, watch_.who(map_.rank), watch_.timeout().count());
      std::vector<Store*> inside = watch_.stores();
      for (Server& server : servers_) inside.push_back(&server.store);
      door_.wait(std::move(inside), deadline_);
      OFSDP_RETURN_IF_ERROR(watch_.take_news());
      for (Server& server : servers_) OFSDP_RETURN_IF_ERROR(go_on(server));
      for (Store& client : door_.let_in()) OFSDP_RETURN_IF_ERROR(answer(std::move(client)));
    }
    for (Server& server : servers_) {
      meeting_.servers.push_back({server.rank, std::move(server.socket)});
    }
    return {};
  }

 private:
  struct Server {
    int rank;
    Store store;
    Challenge challenge;
    bool asked = false;
    UniqueFd socket = {};  // valid once the server has answered
  };

  bool answers(int rank) const {
    return !map_.is_here(rank) && map_.server(map_.host(), rank) == map_.rank;
  }

  int clients() const {
    int count = 0;
    for (int r = 0; r < map_.world(); ++r) count += answers(r);
    return count;
  }

  bool all_have_answered() const {
    return std::ranges::all_of(servers_, [](const Server& s) { return s.socket.valid(); });
  }

  Result<Store> reach(int rank) const {
    const HostEntry& entry = table_.entries[static_cast<size_t>(rank)];
    const std::string& address = entry.address.empty() ? table_.master : entry.address;
    Connection connection = connect_to(address, entry.port, deadline_);
    OFSDP_FAULT_IF(!connection.socket.valid(), "{} cannot be reached from rank {}: {}",
                   watch_.who(rank), map_.rank, connection.problem(address, entry.port));
    tune(connection.socket.get(), line_patience(watch_.timeout()));
    return Store(std::move(connection.socket));
  }

  Status knock(int rank) {
    OFSDP_ASSIGN_OR_RETURN(Store store, reach(rank));
    servers_.push_back(
        {rank, std::move(store), Challenge(secret_, kLinkPurpose, Challenge::Side::kConnects)});
    return go_on(servers_.back());
  }

  Status go_on(Server& server) {
    if (server.socket.valid()) return {};
    const Challenge::State state = server.challenge.look(server.store);
    if (state == Challenge::State::kPassed && !std::exchange(server.asked, true)) {
      server.store.set("handshake", to_value(HostHandshake{table_.token, map_.rank, server.rank}));
    }
    if (const auto said = server.store.take("handshake")) {
      const auto answer = from_value<HostHandshake>(*said);
      if (!server.asked || !answer || answer->token != table_.token) return lost(server.rank);
      server.socket = server.store.release();
      return {};
    }
    const bool over = server.store.closed() || state == Challenge::State::kTurnedAway;
    return over || watch_.is_late() ? lost(server.rank) : Status();
  }

  Status answer(Store client) {
    const auto handshake = from_value<HostHandshake>(*client.get("handshake"));
    const bool ours = handshake && handshake->token == table_.token && handshake->to == map_.rank &&
                      handshake->from < map_.world() && answers(handshake->from);
    if (!ours) return {};
    const auto same = [&](const HostConnection& c) { return c.peer == handshake->from; };
    if (std::ranges::any_of(meeting_.clients, same)) return {};
    tune(client.fd(), line_patience(watch_.timeout()));
    client.set("handshake", to_value(*handshake));
    if (client.closed()) return lost(handshake->from);
    meeting_.clients.push_back({handshake->from, client.release()});
    return {};
  }

  Status lost(int peer) const {
    OFSDP_FAULT_IF(watch_.is_late(), "{} did not answer rank {} within {} s", watch_.who(peer),
                   map_.rank, watch_.timeout().count());
    return fault("{} ended while rank {} connected to it", watch_.who(peer), map_.rank);
  }

  HostsRendezvous& meeting_;
  const HostTable& table_;
  const HostMap& map_ = meeting_.map;
  RendezvousWatch& watch_ = *meeting_.watch;
  const JobSecret& secret_;
  StreamClock::time_point deadline_ = watch_.deadline();
  Doorkeeper door_;
  std::list<Server> servers_;  // in host order
};

}  // namespace

HostsRendezvous::HostsRendezvous() = default;
HostsRendezvous::~HostsRendezvous() = default;
HostsRendezvous::HostsRendezvous(HostsRendezvous&&) noexcept = default;

std::chrono::seconds HostsRendezvous::left() const {
  const auto left = std::chrono::ceil<std::chrono::seconds>(watch->deadline() - StreamClock::now());
  return std::max(left, std::chrono::seconds(1));
}

Status HostsRendezvous::conclude(Status mine) {
  Status status = watch->conclude(std::move(mine));
  watch.reset();
  return status;
}

Result<HostsRendezvous> meet_hosts(const RankIdentity& identity, RendezvousPoint point,
                                   std::chrono::seconds timeout) {
  OFSDP_REJECT_IF(identity.world > kMaxRanks, "{} ranks, expected at most {}", identity.world,
                  kMaxRanks);
  OFSDP_ASSIGN_OR_RETURN(HostTable table, find_hosts(identity, point, timeout));
  HostsRendezvous meeting;
  std::vector<int> host_of;
  std::vector<std::string> names, who;
  for (const HostEntry& entry : table.entries) {
    who.push_back(format_text("rank {} (pid {} on {})", who.size(), entry.pid, entry.name));
    host_of.push_back(entry.host);
    names.push_back(entry.name);
    meeting.pids.push_back(entry.pid);
  }
  meeting.map = HostMap::make(identity.rank, host_of, std::move(names));
  meeting.rendezvous = format_text("hosts-{:016x}-{}", table.token, meeting.map.host());
  const std::string& address = point.addresses.empty() ? table.master : point.addresses[0];
  meeting.watch =
      std::make_unique<RendezvousWatch>(meeting.map, std::move(table.peers), std::move(who),
                                        format_text("{}:{}", address, point.port), timeout);
  Status connected = check_open_files(meeting.map);
  if (connected.ok()) connected = Connecting(meeting, table, identity.secret).connect_all();
  if (!connected.ok()) return meeting.watch->conclude(std::move(connected));
  meeting.watch->connected();
  return meeting;
}

}  // namespace ofsdp::fsdp
