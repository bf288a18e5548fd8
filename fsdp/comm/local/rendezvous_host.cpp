// The side of the host's first rank of the rendezvous.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "fsdp/comm/local/rendezvous_wire.h"

namespace ofsdp::fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHelloPatience{
    2000};  // a stranger that says nothing holds up nobody for long

milliseconds until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds{0});
}

// Collects guests until all are there, then hands out what they need.
class Host {
 public:
  Host(const LocalSeat& seat, std::chrono::seconds timeout)
      : seat_(seat),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        sockets_(seat.ranks.size()),
        hellos_(seat.ranks.size()) {}

  Result<Meeting> meet() {
    hellos_[0] = hello_of(seat_);
    OFSDP_RETURN_IF_ERROR(open_lifeline(meeting_, seat_));
    Status collected = listen_here();
    while (collected.ok() && present_ < seat_.here()) collected = let_one_in();
    listener_.reset();
    if (collected.ok()) collected = welcome_all();
    if (collected.ok()) return finish();
    for (const UniqueFd& guest : sockets_) {
      if (guest.valid()) send_message(guest.get(), Welcome{0, 0}, -1);
    }
    return collected;
  }

 private:
  Status listen_here() {
    const Address address = address_of(seat_.rendezvous);
    listener_ = new_socket();
    while (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) !=
           0) {
      if (errno != EADDRINUSE || Clock::now() >= deadline_) {
        return fault("rank {} cannot listen at rendezvous {}: {}", seat_.rank(), seat_.rendezvous,
                     errno == EADDRINUSE ? "another run holds it" : std::strerror(errno));
      }
      std::this_thread::sleep_for(kRendezvousRetry);
    }
    if (listen(listener_.get(), kMostRanks) != 0) return fault("listen: {}", std::strerror(errno));
    return {};
  }

  Status let_one_in() {
    pollfd event{listener_.get(), POLLIN, 0};
    const int ready = poll(&event, 1, static_cast<int>(until(deadline_).count()));
    if (ready == 0) return missing();
    if (ready < 0) return {};  // a signal
    UniqueFd guest(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!guest.valid() || !same_user(guest.get())) return {};
    Hello hello{};
    Received got = receive_message(guest.get(), hello, kHelloPatience);
    if (got.kind != Received::Kind::kMessage || hello.magic != kMagic || !got.fd.valid()) return {};
    return seat(hello, std::move(guest), std::move(got.fd));
  }

  Status seat(const Hello& hello, UniqueFd guest, UniqueFd lifeline) {
    if (hello.here != seat_.here()) {
      send_message(guest.get(), Welcome{0, 0}, -1);
      return input_error("rank {} (pid {}) expects {} ranks at rendezvous {}, rank {} expects {}",
                         hello.place, hello.pid, hello.here, seat_.rendezvous, seat_.rank(),
                         seat_.here());
    }
    if (hello.place < 0 || hello.place >= seat_.here()) return {};  // no rank of ours
    const auto place = static_cast<size_t>(hello.place);
    if (place == 0 || sockets_[place].valid()) {
      send_message(guest.get(), Welcome{0, 0}, -1);
      return input_error("two processes say that they are rank {} at rendezvous {}: pids {} and {}",
                         seat_.ranks[place], seat_.rendezvous, hellos_[place].pid, hello.pid);
    }
    limit_sends(guest.get(), timeout_);
    sockets_[place] = std::move(guest);
    meeting_.lifelines[place] = std::move(lifeline);
    hellos_[place] = hello;
    ++present_;
    return {};
  }

  Status missing() const {
    std::string ranks;
    for (size_t p = 1; p < sockets_.size(); ++p) {
      if (sockets_[p].valid()) continue;
      ranks += format_text("{}{}", ranks.empty() ? "" : ", ", seat_.ranks[p]);
    }
    return fault("rank {} did not arrive at rendezvous {} within {} s: {} of {} ranks are there",
                 ranks, seat_.rendezvous, timeout_.count(), present_, seat_.here());
  }

  Status welcome_all() {
    OFSDP_ASSIGN_OR_RETURN(meeting_.page, ControlPage::create(seat_.world));
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (size_t p = 0; p < hellos_.size(); ++p) {
      meeting_.page.rank(seat_.ranks[p]).pid = hellos_[p].pid;
      CPU_OR(&cores, &cores, &hellos_[p].cores);
    }
    meeting_.cores = CPU_COUNT(&cores);
    // A guest that is gone by now is noticed by its lifeline.
    for (size_t guest = 1; guest < sockets_.size(); ++guest) {
      const int socket = sockets_[guest].get();
      send_message(socket, Welcome{1, meeting_.cores}, meeting_.page.fd());
      for (size_t of = 0; of < sockets_.size(); ++of) {
        if (of != guest) send_message(socket, kMagic, meeting_.lifelines[of].get());
      }
    }
    return {};
  }

  Meeting finish() {
    meeting_.links = PeerLinks(seat_, std::move(sockets_));
    return std::move(meeting_);
  }

  const LocalSeat& seat_;
  std::chrono::seconds timeout_;
  Clock::time_point deadline_;
  UniqueFd listener_;
  std::vector<UniqueFd> sockets_;
  std::vector<Hello> hellos_;
  int present_ = 1;
  Meeting meeting_;
};

}  // namespace

Result<Meeting> host_meeting(const LocalSeat& seat, std::chrono::seconds timeout) {
  return Host(seat, timeout).meet();
}

}  // namespace ofsdp::fsdp
