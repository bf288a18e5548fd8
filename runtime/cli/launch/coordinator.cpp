#include "runtime/cli/launch/coordinator.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

namespace ofsdp::cli {

using State = NodeGuest::State;
using nlohmann::json;

namespace {

constexpr std::chrono::milliseconds kSlice{50};
constexpr std::chrono::seconds kFarewell{2};  // for the last words to be taken
constexpr std::chrono::seconds kStrangerPatience{5};
constexpr int kMostStrangers = 64;

}  // namespace

std::chrono::milliseconds beat_interval(std::chrono::milliseconds timeout) {
  return std::clamp(timeout / 8, std::chrono::milliseconds(50), std::chrono::milliseconds(1000));
}

Coordinator::Coordinator(UniqueFd listener, const Endpoint& endpoint, const LaunchPlan& plan)
    : plan_(plan),
      endpoint_(endpoint),
      timeout_(timeout_of(plan.options)),
      point_(plan.checkpoint_dir),
      listener_(std::move(listener)),
      table_(static_cast<int>(plan.options.nnodes)),
      deadline_(Clock::now() + timeout_) {
  assignment_.run_id = unique_run_id();
  assignment_.first_world = 0;
  thread_ = std::thread([this] { serve(); });
}

Coordinator::~Coordinator() {
  quit_ = true;
  thread_.join();
}

void Coordinator::serve() {
  while (!over_ && !quit_) {
    look();
    let_in();
    for (NodeGuest& guest : table_.guests()) listen_to(guest);
    drop_gone();
    beat();
    gathering() ? gather() : watch_attempt();
  }
  if (!over_)
    end(1, format_text("the launcher at rendezvous {} has ended", endpoint_.text()), true);
  listener_.reset();
  const auto unsent = [](const NodeGuest& g) { return !g.channel.closed(); };
  for (const auto until = Clock::now() + kFarewell;
       Clock::now() < until && std::ranges::any_of(table_.guests(), unsent);) {
    look();
    for (NodeGuest& guest : table_.guests()) guest.channel.pump();  // closed by the other side
  }
}

void Coordinator::look() {
  std::vector<pollfd> events{{listener_.get(), POLLIN, 0}};
  for (NodeGuest& guest : table_.guests()) {
    const short wanted = guest.channel.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    events.push_back({guest.channel.fd(), wanted, 0});
  }
  poll(events.data(), events.size(), static_cast<int>(kSlice.count()));
}

void Coordinator::let_in() {
  while (table_.count(State::kStranger) < kMostStrangers) {
    pollfd event{listener_.get(), POLLIN, 0};
    if (poll(&event, 1, 0) <= 0) return;
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) return;
    NodeGuest& guest = table_.guests().emplace_back();
    guest.address = address_of_peer(socket.get());
    guest.channel = NodeChannel(std::move(socket));
  }
}

void Coordinator::listen_to(NodeGuest& guest) {
  guest.channel.pump();
  while (const auto message = guest.channel.receive()) hear(guest, *message);
}

void Coordinator::hear(NodeGuest& guest, const json& message) {
  const std::string kind = kind_of(message);
  if (guest.state == State::kStranger) return greet(guest, message);
  if (kind == "failing" && !guest.failing) guest.order = ++failing_;
  if (kind == "failing") guest.failing = true;
  if (kind != "ended" || guest.state != State::kRunning) return;
  guest.outcome = read_outcome(message).value_or(Outcome{.status = 1, .line = {}});
  guest.hello.free_port = port_in(message);
  guest.state = State::kEnded;
}

void Coordinator::greet(NodeGuest& guest, const json& message) {
  const auto hello = read_hello(message);
  if (!hello) return guest.channel.close();
  if (hello->version != kRendezvousVersion) {
    return refuse(guest,
                  format_text("it speaks version {}, this one version {}", kRendezvousVersion,
                              hello->version),
                  false);
  }
  if (hello->job != plan_.options.rdzv_id) {
    return refuse(guest,
                  format_text("it holds the job --rdzv-id '{}', this one is '{}'",
                              plan_.options.rdzv_id, hello->job),
                  true);
  }
  guest.hello = *hello;
  if (hello->nnodes != places()) {
    return contradiction(guest, format_text("--nnodes is {} there and {} on {}", places(),
                                            hello->nnodes, hello->host));
  }
  const NodeGuest* sitting = table_.at(hello->node_rank);
  if (hello->node_rank >= 0 && sitting != nullptr) {
    return contradiction(guest, format_text("two launchers say --node-rank {}, on {} and on {}",
                                            hello->node_rank, sitting->hello.host, hello->host));
  }
  const int here = static_cast<int>(table_.guests().size()) - table_.count(State::kStranger);
  if (here >= places()) return refuse(guest, format_text("all {} nodes are there", here), true);
  guest.seat = hello->node_rank;
  guest.state = State::kWaiting;
  guest.channel.send({{"kind", "welcome"}});
}

void Coordinator::refuse(NodeGuest& guest, const std::string& why, bool again) {
  guest.channel.send({{"kind", "refused"}, {"why", why}, {"again", again}});
}

// Whoever comes into a run that is under way does not end it.
void Coordinator::contradiction(NodeGuest& guest, const std::string& what) {
  refuse(guest, what, !first_time());
  if (first_time()) end(2, format_text("rendezvous {}: {}", endpoint_.text(), what), true);
}

bool Coordinator::is_gone(NodeGuest& guest) {
  if (guest.channel.closed()) return true;
  const bool stranger = guest.state == State::kStranger;
  return guest.channel.silence() > (stranger ? Milliseconds(kStrangerPatience) : timeout_);
}

void Coordinator::drop_gone() {
  for (auto guest = table_.guests().begin(); guest != table_.guests().end();) {
    const auto here = guest++;
    if (!is_gone(*here)) continue;
    if (here->state == State::kRunning) {
      gone_ += format_text("{}{} is gone", gone_.empty() ? "" : ", ", name_of(*here));
    }
    table_.guests().erase(here);
  }
}

void Coordinator::beat() {
  if (Clock::now() < next_beat_) return;
  next_beat_ = Clock::now() + beat_interval(timeout_);
  for (NodeGuest& guest : table_.guests()) {
    if (guest.state != State::kStranger) guest.channel.send({{"kind", "beat"}});
  }
}

}  // namespace ofsdp::cli
