// Rank 0's side of the meeting of hosts.
#include <sys/random.h>

#include <algorithm>
#include <map>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_meeting_wire.h"

namespace ofsdp::fsdp {
namespace {

class Gathering {
 public:
  Gathering(const RankIdentity& identity, const MeetingPoint& point, const HostHello& mine,
            std::chrono::seconds timeout)
      : identity_(identity),
        point_(point),
        timeout_(timeout),
        deadline_(StreamClock::now() + timeout),
        sockets_(static_cast<size_t>(identity.world)),
        hellos_(static_cast<size_t>(identity.world)) {
    hellos_[0] = mine;
  }

  Result<HostTable> gather() {
    Status status;
    while (status.ok() && present_ < identity_.world) status = let_one_in();
    if (status.ok()) status = check_hosts();
    if (!status.ok()) {
      for (const UniqueFd& guest : sockets_) send(guest, HostWelcome{});
      return status;
    }
    return welcome_all();
  }

 private:
  template <typename T>
  void send(const UniqueFd& guest, const T& message) const {
    if (!guest.valid()) return;
    send_whole(guest.get(), &message, sizeof message, StreamClock::now() + kStrangerPatience);
  }

  Status let_one_in() {
    UniqueFd guest = accept_one(point_.listener.get(), deadline_);
    if (!guest.valid()) return StreamClock::now() >= deadline_ ? missing() : Status{};
    HostHello hello;
    const auto patience = std::min(deadline_, StreamClock::now() + kStrangerPatience);
    if (!receive_whole(guest.get(), &hello, sizeof hello, patience)) return {};
    const bool ours =
        hello.magic == kHostMagic && hello.version == kHostVersion && hello.run == hellos_[0].run;
    return ours ? seat(hello, std::move(guest)) : Status{};
  }

  Status seat(const HostHello& hello, UniqueFd guest) {
    const int world = identity_.world;
    const std::string name = get_text(hello.name);
    const auto rank = static_cast<size_t>(hello.rank);
    Status refused;
    if (hello.world != world) {
      refused = input_error("rank {} (pid {} on {}) expects {} ranks, rank 0 expects {}",
                            hello.rank, hello.pid, name, hello.world, world);
    } else if (hello.rank < 0 || hello.rank >= world) {
      return {};
    } else if (hello.rank == 0 || sockets_[rank].valid()) {
      refused =
          input_error("two processes say that they are rank {}: pids {} on {} and {} on {}",
                      hello.rank, hellos_[rank].pid, get_text(hellos_[rank].name), hello.pid, name);
    }
    if (!refused.ok()) {
      send(guest, HostWelcome{});
      return refused;
    }
    tune(guest.get(), line_patience(timeout_));
    sockets_[rank] = std::move(guest);
    hellos_[rank] = hello;
    ++present_;
    return {};
  }

  Status missing() const {
    std::string ranks;
    for (size_t r = 1; r < sockets_.size(); ++r) {
      if (!sockets_[r].valid()) ranks += format_text("{}{}", ranks.empty() ? "" : ", ", r);
    }
    return fault("rank {} did not arrive at {}:{} within {} s: {} of {} ranks are there", ranks,
                 point_.addresses[0], point_.port, timeout_.count(), present_, identity_.world);
  }

  Status check_hosts() {
    std::map<std::string, int> numbered;
    for (const HostHello& hello : hellos_) {
      const auto next = static_cast<int>(numbered.size());
      host_of_.push_back(numbered.emplace(get_text(hello.machine), next).first->second);
    }
    for (size_t r = 0; r < hellos_.size(); ++r) {
      const auto there = std::ranges::count(host_of_, host_of_[r]);
      if (hellos_[r].local_world <= 0 || hellos_[r].local_world == there) continue;
      return input_error("rank {} (pid {} on {}) expects {} ranks on its host, found {}", r,
                         hellos_[r].pid, get_text(hellos_[r].name), hellos_[r].local_world, there);
    }
    return {};
  }

  HostEntry entry(size_t rank) const {
    HostEntry entry{host_of_[rank], hellos_[rank].pid, hellos_[rank].port, {}, {}};
    // A rank of this host may have come over an address that others cannot use.
    if (host_of_[rank] != host_of_[0]) put_text(entry.address, peer_address(sockets_[rank].get()));
    put_text(entry.name, get_text(hellos_[rank].name));
    return entry;
  }

  // A guest that is gone by now is missed when its connections are made.
  HostTable welcome_all() {
    HostTable table;
    [[maybe_unused]] const ssize_t got = getrandom(&table.token, sizeof table.token, 0);
    for (size_t r = 0; r < hellos_.size(); ++r) table.entries.push_back(entry(r));
    for (const UniqueFd& guest : sockets_) {
      if (!guest.valid()) continue;
      send(guest, HostWelcome{kHostMagic, 1, identity_.world, table.token});
      send_whole(guest.get(), table.entries.data(), table.entries.size() * sizeof(HostEntry),
                 StreamClock::now() + timeout_);
    }
    for (size_t r = 1; r < sockets_.size(); ++r) {
      table.sockets.push_back({static_cast<int>(r), std::move(sockets_[r])});
    }
    return table;
  }

  const RankIdentity& identity_;
  const MeetingPoint& point_;
  std::chrono::seconds timeout_;
  StreamClock::time_point deadline_;
  std::vector<UniqueFd> sockets_;
  std::vector<HostHello> hellos_;
  std::vector<int> host_of_;
  int present_ = 1;
};

}  // namespace

Result<HostTable> gather_hosts(const RankIdentity& identity, MeetingPoint& point,
                               const HostHello& mine, std::chrono::seconds timeout) {
  return Gathering(identity, point, mine, timeout).gather();
}

}  // namespace ofsdp::fsdp
