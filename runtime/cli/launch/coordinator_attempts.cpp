// The coordinator's attempts: when one begins, what it is told to start, how it ends, what is next.

#include "runtime/cli/launch/coordinator.h"

namespace ofsdp::cli {

using State = NodeGuest::State;

namespace {

constexpr std::chrono::seconds kStopPatience{7};  // beside the ranks' grace on each host
constexpr std::chrono::seconds kReturnPatience{
    3};  // for a host in whose place --min-nodes would do

std::string nodes_text(int nodes) { return format_text("{} node{}", nodes, nodes == 1 ? "" : "s"); }

}  // namespace

void Coordinator::gather() {
  const int here = table_.count(State::kWaiting);
  const bool late = Clock::now() >= deadline_;
  if (here < places() && !late) return;
  const std::vector<int> absent = table_.deal();
  if (here == places()) return begin_attempt();
  if (here < enough()) {
    const std::string why = missing(absent);
    return end(1, line_.empty() ? why : format_text("{}; {}", line_, why), true);
  }
  if (first_time()) {
    notice_ = format_text("{}; starting with {}", missing(absent), nodes_text(here));
  }
  begin_attempt();
}

// "nodes 1, 2 did not arrive at rendezvous HOST:PORT within 30 s: node 0 (a) is there"
std::string Coordinator::missing(const std::vector<int>& seats) const {
  std::vector<std::string> there;
  for (int seat = 0; seat < places(); ++seat) {
    const NodeGuest* guest = table_.at(seat);
    if (guest != nullptr) there.push_back(format_text("{} ({})", seat, guest->hello.host));
  }
  const bool one = there.size() == 1;
  return format_text(
      "node{} {} did not {} rendezvous {} within {:g} s: {} there, {} wanted",
      seats.size() == 1 ? "" : "s", joined(seats, ", "),
      first_time() ? "arrive at" : "come back to", endpoint_.text(), plan_.options.timeout_seconds,
      there.empty()
          ? "no node is"
          : format_text("node{} {} {}", one ? "" : "s", joined(there, ", "), one ? "is" : "are"),
      enough());
}

void Coordinator::begin_attempt() {
  const std::vector<NodeGuest*> nodes = table_.number();
  Assignment& a = assignment_;
  a.nodes = running_ = static_cast<int>(nodes.size());
  a.world = 0;
  for (const NodeGuest* node : nodes) a.world += node->hello.nproc;
  if (first_time()) a.first_world = a.world;
  const NodeGuest& master = *nodes.front();
  a.master_address = master.hello.own ? endpoint_.host : master.address;
  a.master_port = master.hello.free_port;
  Turn turn{.start = true, .assignment = a, .status = 0, .line = {}, .notice = {}};
  turn.assignment.first_rank = 0;
  for (NodeGuest* node : nodes) {
    turn.assignment.node = node->node;
    turn.line = node->hello.own ? line_ : "";
    turn.notice = node->hello.own ? notice_ : "";
    node->channel.send(to_json(turn));
    node->state = State::kRunning;
    node->failing = false;
    turn.assignment.first_rank += node->hello.nproc;
  }
  stopping_ = false;
  failing_ = 0;
  line_.clear();
  notice_.clear();
  gone_.clear();
}

// Until no rank is left on any host.
void Coordinator::watch_attempt() {
  bool failing = !gone_.empty();
  for (const NodeGuest& guest : table_.guests()) {
    const bool failed = guest.state == State::kEnded && guest.outcome.status != 0;
    failing = failing || failed || (guest.state == State::kRunning && guest.failing);
  }
  if (failing && !stopping_) stop_all();
  if (stopping_ && Clock::now() >= deadline_) {
    for (NodeGuest& guest : table_.guests()) {
      if (guest.state == State::kRunning) guest.channel.close();
    }
    drop_gone();
  }
  if (table_.count(State::kRunning) == 0) end_attempt();
}

void Coordinator::stop_all() {
  stopping_ = true;
  deadline_ = Clock::now() + plan_.grace + kStopPatience;
  for (NodeGuest& guest : table_.guests()) {
    if (guest.state == State::kRunning) guest.channel.send({{"kind", "stop"}});
  }
}

void Coordinator::end_attempt() {
  int status = gone_.empty() ? 0 : 1;
  bool interrupted = false, spoke = false;
  std::string line;
  for (const NodeGuest& guest : table_.guests()) {
    if (guest.state != State::kEnded) continue;
    status = std::max(status, guest.outcome.status);
    interrupted = interrupted || guest.outcome.interrupted;
    spoke = spoke || guest.outcome.spoke;
    if (line.empty()) line = guest.outcome.line;
  }
  if (line.empty()) line = gone_;
  if (spoke) line.clear();
  line_ = spoken_line();
  const int most = static_cast<int>(plan_.options.max_restarts);
  if (status != 1 || interrupted || assignment_.restart == most) {
    return end(status, line_.empty() ? line : line_, false);
  }
  for (NodeGuest& guest : table_.guests()) {
    if (guest.state == State::kEnded) guest.state = State::kWaiting;
  }
  assignment_.from_latest = point_.has_saved();
  notice_ = format_text("{}{}restart {} of {}: {}", line, line.empty() ? "" : "; ",
                        ++assignment_.restart, most, point_.text());
  running_ = 0;
  const bool will_do = table_.count(State::kWaiting) >= enough();
  deadline_ =
      Clock::now() + (will_do ? std::min<Milliseconds>(timeout_, kReturnPatience) : timeout_);
}

// Of all that ranks have said, what the host that failed first has to say.
std::string Coordinator::spoken_line() {
  const NodeGuest* first = nullptr;
  for (const NodeGuest& guest : table_.guests()) {
    const bool says = guest.state == State::kEnded && guest.outcome.spoke;
    if (!says || guest.outcome.line.empty()) continue;
    if (first == nullptr || guest.order < first->order) first = &guest;
  }
  return first == nullptr ? "" : first->outcome.line;
}

// `to_all`: every launcher prints the line; else only the one of this host.
void Coordinator::end(int status, const std::string& line, bool to_all) {
  over_ = true;
  for (NodeGuest& guest : table_.guests()) {
    if (guest.state == State::kStranger) continue;
    Turn turn;
    turn.status = status;
    if (to_all || guest.hello.own) turn.line = line;
    guest.channel.send(to_json(turn));
  }
}

}  // namespace ofsdp::cli
