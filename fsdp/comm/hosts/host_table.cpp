#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/doorkeeper.h"
#include "kernels/base/hash.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"

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
  const PortUse use =
      identity.started_by == "fsdp-run" ? PortUse::kRowElementsPerThread : PortUse::kAlone;
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

void list_fields(StoreFields& fields, HostHello& hello) {
  fields.number("rank", INT_MIN, INT_MAX, hello.rank);
  fields.number("world", INT_MIN, INT_MAX, hello.world);
  fields.number("pid", 0, INT_MAX, hello.pid);
  fields.number("port", 1, 65535, hello.port);
  fields.number("local_world", 0, INT_MAX, hello.local_world);
  fields.word("run", hello.run);
  fields.text("machine", hello.machine);
  fields.text("name", hello.name);
}

void list_fields(StoreFields& fields, RendezvousReport& report) {
  fields.number("stage", RendezvousReport::kConnected, RendezvousReport::kInput, report.stage);
  fields.text("text", report.text);
}

void list_fields(StoreFields& fields, RendezvousVerdict& verdict) {
  fields.flag("all_met", verdict.all_met);
}

void list_fields(StoreFields& fields, HostHandshake& knock) {
  fields.word("token", knock.token);
  fields.number("from", 0, kMaxRanks - 1, knock.from);
  fields.number("to", 0, kMaxRanks - 1, knock.to);
}

namespace {

struct HostPlace {
  std::string address, name;
};

void list_fields(StoreFields& fields, HostPlace& place) {
  fields.text("address", place.address);
  fields.text("name", place.name);
}

// A rank's numbers in the table; `place` is an index in the table's places.
struct RankNumbers {
  int host = 0, pid = 0, port = 0, place = 0;
};

struct Column {
  const char* name;
  int least, most;
  int RankNumbers::*number;
};

constexpr Column kColumns[] = {{"hosts", 0, kMaxRanks - 1, &RankNumbers::host},
                               {"pids", 0, INT_MAX, &RankNumbers::pid},
                               {"ports", 1, 65535, &RankNumbers::port},
                               {"at", 0, kMaxRanks - 1, &RankNumbers::place}};

bool read_column(const Json& value, const Column& column, std::vector<RankNumbers>& ranks) {
  const auto found = value.find(column.name);
  if (found == value.end() || !found->is_array() || found->size() != ranks.size()) return false;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Json& number = (*found)[r];
    if (!number.is_number_integer()) return false;
    const auto read = number.get<int64_t>();
    if (read < column.least || read > column.most) return false;
    ranks[r].*column.number = static_cast<int>(read);
  }
  return true;
}

std::optional<std::vector<HostPlace>> read_places(const Json& value) {
  const auto found = value.find("places");
  if (found == value.end() || !found->is_array()) return std::nullopt;
  std::vector<HostPlace> places;
  for (const Json& next : *found) {
    auto place = next.is_object() ? from_value<HostPlace>(next) : std::nullopt;
    if (!place) return std::nullopt;
    places.push_back(*std::move(place));
  }
  return places;
}

}  // namespace

Json table_value(const HostTable& table) {
  Json value{{"token", table.token}, {"places", Json::array()}};
  for (const Column& column : kColumns) value[column.name] = Json::array();
  std::map<std::pair<std::string, std::string>, int> numbered;
  for (const HostEntry& entry : table.entries) {
    const auto next = static_cast<int>(numbered.size());
    const auto [place, is_new] = numbered.emplace(std::pair(entry.address, entry.name), next);
    if (is_new) value["places"].push_back(to_value(HostPlace{entry.address, entry.name}));
    const RankNumbers numbers{entry.host, entry.pid, entry.port, place->second};
    for (const Column& column : kColumns) value[column.name].push_back(numbers.*column.number);
  }
  return value;
}

bool read_table(const Json& value, int world, HostTable& table) {
  std::vector<RankNumbers> ranks(static_cast<size_t>(world));
  for (const Column& column : kColumns) {
    if (!read_column(value, column, ranks)) return false;
  }
  const auto places = read_places(value);
  if (!places) return false;
  table.entries.clear();
  for (const RankNumbers& r : ranks) {
    if (static_cast<size_t>(r.place) >= places->size()) return false;
    const HostPlace& place = (*places)[static_cast<size_t>(r.place)];
    table.entries.push_back({r.host, r.pid, r.port, place.address, place.name});
  }
  StoreFields fields(value);
  fields.word("token", table.token);
  return fields.good();
}

namespace {

constexpr const char* kMagic = "fsdp-run hosts 5";
constexpr std::chrono::seconds kGrace{5};  // so that rank 0 reports missing ranks first
constexpr size_t kMaxTable = size_t{1} << 20;

// Two ranks share a host if they can pass descriptors over an abstract socket: if they have the
// same kernel and the same network namespace.
std::string machine_key(const RankIdentity& identity) {
  if (identity.node_rank >= 0) return format_text("host {}", identity.node_rank);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  stat("/proc/self/ns/net", &net);
  return format_text("{}.{}", boot, net.st_ino);
}

HostHello make_hello(const RankIdentity& identity, int port) {
  const bool told = identity.started_by == "torchrun" || identity.started_by == "fsdp-run";
  const std::string run = format_text("{}/{}", identity.world, identity.run_id);
  return {.rank = identity.rank,
          .world = identity.world,
          .pid = getpid(),
          .port = port,
          .local_world = told || identity.node_rank < 0 ? identity.local_world : 0,
          .run = Fnv1a().add(run).value(),
          .machine = machine_key(identity),
          .name = host_name()};
}

// ---- Rank 0 ----

class Gathering {
 public:
  Gathering(const RankIdentity& identity, const RendezvousPoint& point, HostHello mine,
            std::chrono::seconds timeout)
      : world_(identity.world),
        point_(point),
        timeout_(timeout),
        door_(point.listener, identity.secret, kMeetingPurpose, "hello", identity.world) {
    const auto ranks = static_cast<size_t>(world_);
    there_.resize(ranks);
    stores_.resize(ranks);
    hellos_.resize(ranks);
    hellos_[0] = std::move(mine);
  }

  Result<HostTable> gather() {
    Status status;
    while (status.ok() && present_ < world_) status = take_in();
    if (status.ok()) status = check_hosts();
    if (status.ok()) return welcome_all();
    for (Store& client : stores_) client.set("table");
    return status;
  }

 private:
  // Drops clients that do not belong to this run.
  Status take_in() {
    if (StreamClock::now() >= deadline_) return missing();
    door_.wait({}, deadline_);
    for (Store& client : door_.let_in()) {
      const auto said = client.take("hello");
      const auto hello =
          said->value("magic", Json()) == kMagic ? from_value<HostHello>(*said) : std::nullopt;
      if (!hello || hello->run != hellos_[0].run) continue;
      OFSDP_RETURN_IF_ERROR(admit(*hello, std::move(client)));
    }
    return {};
  }

  Status admit(const HostHello& hello, Store client) {
    const auto rank = static_cast<size_t>(hello.rank);
    Status refused;
    if (hello.world != world_) {
      refused = input_error("rank {} (pid {} on {}) expects {} ranks, rank 0 expects {}",
                            hello.rank, hello.pid, hello.name, hello.world, world_);
    } else if (hello.rank < 0 || hello.rank >= world_) {
      return {};
    } else if (hello.rank == 0 || there_[rank]) {
      refused =
          input_error("two processes say that they are rank {}: pids {} on {} and {} on {}",
                      hello.rank, hellos_[rank].pid, hellos_[rank].name, hello.pid, hello.name);
    }
    if (!refused.ok()) {
      client.set("table");
      return refused;
    }
    tune(client.fd(), line_patience(timeout_));
    there_[rank] = true;
    stores_[rank] = std::move(client);
    hellos_[rank] = hello;
    ++present_;
    return {};
  }

  Status missing() const {
    std::vector<size_t> ranks;
    for (size_t r = 1; r < stores_.size(); ++r) {
      if (!there_[r]) ranks.push_back(r);
    }
    const int strangers = door_.turned_away();
    return fault("rank {} did not arrive at {}:{} within {} s: {} of {} ranks are there{}",
                 joined(ranks, ", "), point_.addresses[0], point_.port, timeout_.count(), present_,
                 world_,
                 strangers == 0 ? "" : format_text("; {} without the job's secret", strangers));
  }

  Status check_hosts() {
    std::map<std::string, int> numbered;
    for (const HostHello& hello : hellos_) {
      const auto next = static_cast<int>(numbered.size());
      host_of_.push_back(numbered.emplace(hello.machine, next).first->second);
    }
    for (size_t r = 0; r < hellos_.size(); ++r) {
      const auto there = std::ranges::count(host_of_, host_of_[r]);
      if (hellos_[r].local_world <= 0 || hellos_[r].local_world == there) continue;
      return input_error("rank {} (pid {} on {}) expects {} ranks on its host, found {}", r,
                         hellos_[r].pid, hellos_[r].name, hellos_[r].local_world, there);
    }
    return {};
  }

  // A client that has ended by now is noticed when others connect to it.
  HostTable welcome_all() {
    HostTable table;
    table.token = random_word();
    for (size_t r = 0; r < hellos_.size(); ++r) {
      HostEntry entry{host_of_[r], hellos_[r].pid, hellos_[r].port, {}, hellos_[r].name};
      // A rank on this host may have come over an address that others cannot use.
      if (host_of_[r] != host_of_[0]) entry.address = peer_address(stores_[r].fd());
      table.entries.push_back(std::move(entry));
    }
    const std::string message = Store::message("table", table_value(table));
    for (int r = 1; r < world_; ++r) {
      Store& client = stores_[static_cast<size_t>(r)];
      client.set_message(message);
      table.peers.push_back({r, std::move(client)});
    }
    return table;
  }

  const int world_;
  const RendezvousPoint& point_;
  const std::chrono::seconds timeout_;
  const StreamClock::time_point deadline_ = StreamClock::now() + timeout_;
  Doorkeeper door_;
  std::vector<bool> there_;    // by rank
  std::vector<Store> stores_;  // by rank
  std::vector<HostHello> hellos_;
  std::vector<int> host_of_;
  int present_ = 1;
};

// ---- The other ranks ----

// The first rank on each host reports an error; the others must not repeat it.
Status silent_unless_first(const RankIdentity& identity, Status status) {
  if (identity.local_rank == 0) return status;
  return {ErrorKind::kPeer, status.message()};
}

Status another_secret(const RankIdentity& identity, const RendezvousPoint& point) {
  return {identity.local_rank == 0 ? ErrorKind::kInput : ErrorKind::kPeer,
          format_text("rank 0 at {}:{} turned rank {} away: {}", point.addresses[0], point.port,
                      identity.rank, identity.secret.refusal())};
}

// Returns a connection on which both ends have proved the secret, and sets `address`.
Result<Store> reach_master(const RankIdentity& identity, const RendezvousPoint& point,
                           std::chrono::seconds timeout, std::string& address) {
  const auto deadline = StreamClock::now() + timeout;
  std::string why;
  while (true) {
    for (const std::string& next : point.addresses) {
      Connection connection = connect_to(next, point.port, deadline, kConnectPatience);
      address = next;
      why = connection.problem(next, point.port);
      if (!connection.socket.valid()) continue;
      Store store(std::move(connection.socket), kMaxTable);
      Challenge challenge(identity.secret, kMeetingPurpose, Challenge::Side::kConnects);
      const auto state = settle(challenge, store, deadline + kGrace);
      if (state == Challenge::State::kPassed) return store;
      if (state == Challenge::State::kTurnedAway) return another_secret(identity, point);
      why = "it says nothing";
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

// Listens where other hosts reach this one: at this end on the connection to rank 0. If that is no
// use because rank 0 is on this host, listens wherever rank 0 does.
Result<Listener> listen_for_others(const RendezvousPoint& point, int to_master, int& port) {
  const std::string mine = own_address(to_master);
  if (!is_loopback(mine) && mine != peer_address(to_master)) return Listener::open({mine}, port);
  return Listener::open(listening_addresses(point), port);
}

Result<HostTable> visit(const RankIdentity& identity, const RendezvousPoint& point,
                        std::chrono::seconds timeout) {
  HostTable table;
  OFSDP_ASSIGN_OR_RETURN(Store store, reach_master(identity, point, timeout, table.master));
  tune(store.fd(), line_patience(timeout));
  int port = 0;
  OFSDP_ASSIGN_OR_RETURN(table.listener, listen_for_others(point, store.fd(), port));
  Json hello = to_value(make_hello(identity, port));
  hello["magic"] = kMagic;
  store.set("hello", std::move(hello));
  if (!store.wait("table", StreamClock::now() + timeout + kGrace)) {
    return silent_unless_first(
        identity,
        !store.closed()
            ? fault("rank 0 at {}:{} did not answer rank {} within {} s", table.master, point.port,
                    identity.rank, timeout.count())
            : fault("rank 0 at {}:{} ended or is of another run: rank {} of {} was turned away",
                    table.master, point.port, identity.rank, identity.world));
  }
  const Json value = *store.take("table");
  if (!value.contains("hosts")) return Status(ErrorKind::kPeer, "rank 0 called the meeting off");
  if (!read_table(value, identity.world, table)) {
    return silent_unless_first(identity, fault("rank 0 at {}:{} sent no table of {} ranks",
                                               table.master, point.port, identity.world));
  }
  table.peers.push_back({0, std::move(store)});
  return table;
}

}  // namespace

Result<HostTable> find_hosts(const RankIdentity& identity, const RendezvousPoint& point,
                             std::chrono::seconds timeout) {
  if (identity.rank != 0) return visit(identity, point, timeout);
  int port = 0;
  OFSDP_ASSIGN_OR_RETURN(Listener listener, Listener::open(listening_addresses(point), port));
  OFSDP_ASSIGN_OR_RETURN(HostTable table,
                         Gathering(identity, point, make_hello(identity, port), timeout).gather());
  table.listener = std::move(listener);
  return table;
}

}  // namespace ofsdp::fsdp
