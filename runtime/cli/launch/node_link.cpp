#include "runtime/cli/launch/node_link.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/host_tasks.h"
#include "kernels/base/process.h"
#include "kernels/base/text.h"
#include "runtime/cli/options/option_table.h"
#include "runtime/log/log_parts.h"

namespace ofsdp::cli {

SignalQueue::SignalQueue() {
  signal(SIGCHLD, SIG_DFL);  // an inherited "ignore" would hide ended children
  sigset_t mine;
  sigemptyset(&mine);
  for (int number : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&mine, number);
  for (int number : {SIGHUP, SIGQUIT, SIGUSR1}) {
    if (!is_ignored(number)) sigaddset(&mine, number);
  }
  sigprocmask(SIG_BLOCK, &mine, &before_);
  fd_ = UniqueFd(signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK));
}

bool SignalQueue::any_waits() const {
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  sigdelset(&waiting, SIGCHLD);
  return sigisemptyset(&waiting) == 0;
}

SignalQueue::Heard SignalQueue::wait(int fd, std::chrono::milliseconds patience) const {
  pollfd events[2] = {{fd_.get(), POLLIN, 0}, {fd, POLLIN, 0}};  // poll skips -1
  if (poll(events, 2, static_cast<int>(patience.count())) <= 0) return {};
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return {};
  return {static_cast<int>(info.ssi_signo), info.ssi_code <= 0};
}

namespace {

constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::milliseconds kConnectPatience{1000};  // for each address

// The link of a run on one host.
class LoneLink final : public NodeLink {
 public:
  explicit LoneLink(const LaunchPlan& plan)
      : point_(plan.checkpoint_dir, static_cast<int>(plan.options.max_restarts), plan.find_folder) {
    turn_.start = true;
    turn_.assignment.world = static_cast<int>(plan.options.nproc_per_node);
    turn_.assignment.first_world = turn_.assignment.world;
    turn_.assignment.run_id = unique_run_id();
  }

  Result<Turn> next(const Outcome* last) override {
    if (last == nullptr) return turn_;
    turn_.line = last->spoke ? "" : last->line;
    turn_.status = last->status;
    const auto notice = point_.start_again(*last, turn_.assignment);
    turn_.start = notice.has_value();
    turn_.notice = notice.value_or("");
    return turn_;
  }

 private:
  const RestartPoint point_;
  Turn turn_;
};

// The link of several hosts. The launcher on the endpoint's host starts the coordinator; all
// launchers are clients of it.
class RendezvousLink final : public NodeLink {
 public:
  RendezvousLink(const LaunchPlan& plan, const SignalQueue& signals)
      : plan_(plan), signals_(signals), timeout_(timeout_of(plan.options)) {}

  Result<Turn> next(const Outcome* last) override {
    if (last == nullptr) {
      OFSDP_ASSIGN_OR_RETURN(endpoint_, parse_endpoint(plan_.options.rdzv_endpoint));
      OFSDP_ASSIGN_OR_RETURN(secret_, JobSecret::from_environment());
      OFSDP_RETURN_IF_ERROR(join());
    } else {
      Outcome outcome = *last;
      held_ = HeldPort::any();
      outcome.free_port = held_.port();
      store_.set("ended", to_value(outcome));
    }
    while (store_.get("turn") == nullptr && !lost()) {
      OFSDP_RETURN_IF_ERROR(wait_a_little());
      exchange();
    }
    const auto said = store_.take("turn");
    const auto turn = said ? from_value<Turn>(*said) : std::nullopt;
    if (!turn) return end_without_others(last);
    restart_ = turn->assignment.restart;
    return *turn;
  }

  int fd() const override { return store_.fd(); }
  void failing() override { store_.set("failing"); }

  bool told_to_stop() override {
    exchange();
    const Json* said = store_.get("stop");
    const auto stop = said == nullptr ? std::nullopt : from_value<StopOrder>(*said);
    // An order for an earlier attempt does not count: its ranks may have ended without it.
    return (stop && stop->restart == restart_) || store_.get("turn") != nullptr || lost();
  }

 private:
  // Prints one line: that of a rank, if a rank has reported.
  Result<Turn> end_without_others(const Outcome* last) const {
    if (last == nullptr || !last->spoke) {
      return fault("the launcher at rendezvous {} is gone", endpoint_.text());
    }
    return Turn{.status = last->status, .line = last->line};
  }

  bool lost() { return store_.closed() || store_.silence() > timeout_; }

  Status wait_a_little() const {
    if (!signals_.wait(store_.fd(), kSlice).interrupts()) return {};
    return fault("interrupted at rendezvous {}", endpoint_.text());
  }

  // The coordinator may not run yet, or still hold the job before.
  Status join() {
    const auto deadline = StreamClock::now() + timeout_;
    std::string problem;
    while (true) {
      if (coordinator_ == nullptr) {
        auto listener = listen_here();
        if (listener.valid()) {
          OFSDP_ASSIGN_OR_RETURN(
              coordinator_, Coordinator::start(std::move(listener), secret_, endpoint_, plan_));
          if (secret_.empty()) print_lines(stderr, format_text("fsdp-run: {}\n", kNoSecret));
        }
      }
      OFSDP_ASSIGN_OR_RETURN(problem, try_to_join(deadline, problem));
      if (problem.empty()) return {};
      if (StreamClock::now() >= deadline) break;
      if (signals_.wait(-1, kRetry).interrupts()) {
        return fault("interrupted on the way to rendezvous {}", endpoint_.text());
      }
    }
    return fault("cannot join rendezvous {} within {:g} s: {}", endpoint_.text(),
                 plan_.options.timeout_seconds, problem);
  }

  // Returns an invalid listener if the endpoint is another host, or the port is taken.
  Listener listen_here() const {
    const std::vector<std::string> here = addresses_here(endpoint_.host);
    int port = endpoint_.port;
    auto listener = Listener::open(here, port);
    return here.empty() || !listener.ok() ? Listener() : *std::move(listener);
  }

  // Returns why joining failed, or nothing. `before`: the last result.
  Result<std::string> try_to_join(StreamClock::time_point deadline, const std::string& before) {
    Connection connection = connect_to(endpoint_.host, endpoint_.port,
                                       StreamClock::time_point::max(), kConnectPatience);
    if (!connection.unresolved.empty()) return connection.unresolved;
    if (connection.error == ETIMEDOUT) return std::string("no answer");
    if (connection.error != 0) return std::string(std::strerror(connection.error));
    store_ = Store(std::move(connection.socket));
    Challenge challenge(secret_, kLauncherPurpose, Challenge::Side::kConnects);
    for (bool said_hello = false; !said_hello || store_.empty();) {
      const Challenge::State state = challenge.look(store_);
      if (state == Challenge::State::kTurnedAway) {
        return input_error("rendezvous {}: {}", endpoint_.text(), secret_.refusal());
      }
      if (state == Challenge::State::kPassed && !said_hello) {
        store_.set("hello", hello_value(hello()));
        said_hello = true;
        continue;
      }
      if (lost() || StreamClock::now() >= deadline) {
        const std::string taken = format_text(
            "port {} belongs to another program: no launcher answers there", endpoint_.port);
        return before.empty() ? taken : before;
      }
      OFSDP_RETURN_IF_ERROR(wait_a_little());
      said_hello ? exchange() : store_.pump();
    }
    const Json* said = store_.get("refused");
    if (said == nullptr) return std::string();
    const Refusal refusal = from_value<Refusal>(*said).value_or(Refusal{});
    if (refusal.again) return refusal.why;
    return input_error("rendezvous {}: {}", endpoint_.text(), refusal.why);
  }

  NodeHello hello() const {
    return {.job = plan_.options.rdzv_id,
            .node_rank = static_cast<int>(plan_.options.node_rank.value_or(-1)),
            .nnodes = static_cast<int>(plan_.options.nnodes),
            .nproc = static_cast<int>(plan_.options.nproc_per_node),
            .free_port = held_.port(),
            .host = host_name(),
            .own = coordinator_ != nullptr};
  }

  void exchange() {
    store_.pump();
    if (StreamClock::now() < next_beat_) return;
    next_beat_ = StreamClock::now() + beat_interval(timeout_);
    store_.set("beat");
  }

  const LaunchPlan plan_;
  const SignalQueue& signals_;
  const std::chrono::milliseconds timeout_;
  Endpoint endpoint_;
  JobSecret secret_;
  HeldPort held_ = HeldPort::any();           // for rank 0, if it is here
  std::unique_ptr<Coordinator> coordinator_;  // if this host is the endpoint
  Store store_;                               // closed before the coordinator, which waits for that
  StreamClock::time_point next_beat_{};
  int restart_ = 0;  // attempts before this one
};

}  // namespace

std::chrono::milliseconds timeout_of(const LaunchOptions& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1e3));
}

std::unique_ptr<NodeLink> make_node_link(const LaunchPlan& plan, const SignalQueue& signals) {
  if (plan.options.rdzv_endpoint.empty()) return std::make_unique<LoneLink>(plan);
  return std::make_unique<RendezvousLink>(plan, signals);
}

std::string unique_run_id() { return format_text("fsdp-run-{}-{:016x}", getpid(), random_word()); }

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? format_text("{}:{}", host, port)
                                             : format_text("[{}]:{}", host, port);
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  std::string rest;  // ":PORT" or empty
  if (text.starts_with('[') && text.find(']') != std::string::npos) {
    endpoint.host = text.substr(1, text.find(']') - 1);
    rest = text.substr(text.find(']') + 1);
  } else {
    const size_t colon = text.find(':');
    const bool ipv6 = colon != text.rfind(':');
    endpoint.host = ipv6 ? text : text.substr(0, colon);
    if (!ipv6 && colon != std::string::npos) rest = text.substr(colon);
  }
  std::optional<int64_t> port = kRendezvousPort;
  if (!rest.empty()) port = rest[0] == ':' ? parse_integer(rest.substr(1)) : std::nullopt;
  if (endpoint.host.empty() || !port || *port < 1 || *port > 65535) {
    return input_error(
        "--rdzv-endpoint: expected HOST:PORT with a port from 1 to 65535, found '{}'", text);
  }
  endpoint.port = static_cast<int>(*port);
  return endpoint;
}

namespace {

constexpr std::chrono::seconds kFarewell{2};         // for sending the last messages
constexpr std::chrono::seconds kRefusedPatience{5};  // for sending a refusal
// after the grace period of the ranks on each host
constexpr std::chrono::seconds kStopPatience{7};
constexpr std::chrono::seconds kReturnPatience{
    3};  // for a host without which --min-nodes are there

std::string name_of(const NodeClient& client) {
  return format_text("node {} ({})", client.node >= 0 ? client.node : client.seat,
                     client.hello.host);
}

}  // namespace

std::chrono::milliseconds beat_interval(std::chrono::milliseconds timeout) {
  return std::clamp(timeout / 8, std::chrono::milliseconds(50), std::chrono::milliseconds(1000));
}

// ---- The table ----

std::vector<NodeClient*> NodeTable::in_state(NodeClient::State state) {
  std::vector<NodeClient*> found;
  for (NodeClient& client : clients_) {
    if (client.state == state) found.push_back(&client);
  }
  return found;
}

const NodeClient* NodeTable::at(int seat) const {
  const auto found = std::ranges::find_if(clients_, [&](const NodeClient& client) {
    return client.state != NodeClient::State::kRefused && client.seat == seat;
  });
  return found == clients_.end() ? nullptr : &*found;
}

std::vector<int> NodeTable::deal() {
  std::vector<int> free;
  for (int seat = 0; seat < seats_; ++seat) {
    if (at(seat) == nullptr) free.push_back(seat);
  }
  for (NodeClient* client : in_state(NodeClient::State::kWaiting)) {
    if (client->seat >= 0 || free.empty()) continue;
    client->seat = free.front();
    free.erase(free.begin());
  }
  return free;
}

std::vector<NodeClient*> NodeTable::number() {
  std::vector<NodeClient*> nodes = in_state(NodeClient::State::kWaiting);
  std::erase_if(nodes, [](const NodeClient* client) { return client->seat < 0; });
  std::ranges::sort(nodes, {}, &NodeClient::seat);
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i]->node = static_cast<int>(i);
  return nodes;
}

// ---- Who comes and goes ----

Coordinator::Coordinator(Listener listener, const JobSecret& secret, const Endpoint& endpoint,
                         const LaunchPlan& plan)
    : plan_(plan),
      endpoint_(endpoint),
      timeout_(timeout_of(plan.options)),
      point_(plan.checkpoint_dir, static_cast<int>(plan.options.max_restarts), plan.find_folder),
      listener_(std::move(listener)),
      door_(listener_, secret, kLauncherPurpose, "hello"),
      table_(static_cast<int>(plan.options.nnodes)),
      deadline_(StreamClock::now() + timeout_) {
  assignment_.run_id = unique_run_id();
  assignment_.first_world = 0;
}

Result<std::unique_ptr<Coordinator>> Coordinator::start(Listener listener, const JobSecret& secret,
                                                        const Endpoint& endpoint,
                                                        const LaunchPlan& plan) {
  std::unique_ptr<Coordinator> made(new Coordinator(std::move(listener), secret, endpoint, plan));
  OFSDP_ASSIGN_OR_RETURN(made->thread_,
                         base::start_thread("ofsdp-meet", "the coordinator of launchers",
                                            [raw = made.get()] { raw->serve(); }));
  return made;
}

Coordinator::~Coordinator() {
  quit_ = true;
  if (thread_.joinable()) thread_.join();
}

void Coordinator::serve() {
  while (!over_ && !quit_) {
    look();
    for (NodeClient& client : table_.clients()) take_in(client);
    drop_gone();
    beat();
    gathering() ? gather() : watch_attempt();
  }
  if (!over_)
    end(1, format_text("the launcher at rendezvous {} has ended", endpoint_.text()), true);
  // Launchers still on their way here are told why no attempt began. After an attempt they belong
  // to the next job.
  if (!first_time()) listener_.close();
  const auto is_told = [](const NodeClient& c) { return c.store.closed(); };
  const auto is_own = [](const NodeClient& c) { return c.hello.own; };
  for (const auto until = StreamClock::now() + kFarewell;;) {
    const bool awaits_own =
        first_time() && !quit_ && std::ranges::none_of(table_.clients(), is_own);
    const bool all_told = std::ranges::all_of(table_.clients(), is_told);
    if (!awaits_own && (all_told || StreamClock::now() >= until)) break;
    look();  // until the other sides close
  }
  listener_.close();
}

void Coordinator::look() {
  std::vector<Store*> stores;
  for (NodeClient& client : table_.clients()) stores.push_back(&client.store);
  door_.wait(std::move(stores), StreamClock::now() + kSlice);
  if (over_ && !first_time()) return;
  for (Store& store : door_.let_in()) {
    NodeClient& client = table_.clients().emplace_back();
    client.address = peer_address(store.fd());
    client.store = std::move(store);
    greet(client);
  }
}

void Coordinator::take_in(NodeClient& client) {
  if (client.store.take("failing") && client.failing == 0) client.failing = ++failing_;
  const auto ended = client.store.take("ended");
  if (!ended || client.state != State::kRunning) return;
  client.outcome = from_value<Outcome>(*ended).value_or(Outcome{.status = 1});
  client.hello.free_port = client.outcome.free_port;
  client.state = State::kEnded;
}

// The first message of a launcher must be hello.
void Coordinator::greet(NodeClient& client) {
  const auto hello = read_hello(*client.store.take("hello"));
  if (!hello) return client.store.close();
  if (hello->version != kRendezvousVersion) {
    return refuse(client,
                  format_text("it speaks version {}, this one version {}", kRendezvousVersion,
                              hello->version),
                  false);
  }
  if (hello->job != plan_.options.rdzv_id) {
    return refuse(client,
                  format_text("it holds the job --rdzv-id '{}', this one is '{}'",
                              plan_.options.rdzv_id, hello->job),
                  true);
  }
  client.hello = *hello;
  if (over_) return tell_end(client);
  if (hello->nnodes != places()) {
    return contradiction(client, format_text("--nnodes is {} there and {} on {}", places(),
                                             hello->nnodes, hello->host));
  }
  const NodeClient* sitting = table_.at(hello->node_rank);
  if (hello->node_rank >= 0 && sitting != nullptr) {
    return contradiction(client, format_text("two launchers say --node-rank {}, on {} and on {}",
                                             hello->node_rank, sitting->hello.host, hello->host));
  }
  const int here = static_cast<int>(table_.clients().size()) - table_.count(State::kRefused);
  if (here >= places()) return refuse(client, format_text("all {} nodes are there", here), true);
  client.seat = hello->node_rank;
  client.state = State::kWaiting;
  client.store.set("welcome");
}

void Coordinator::refuse(NodeClient& client, const std::string& why, bool again) {
  client.store.set("refused", to_value(Refusal{.why = why, .again = again}));
}

// A launcher that joins a running job must not end it.
void Coordinator::contradiction(NodeClient& client, const std::string& what) {
  refuse(client, what, !first_time());
  if (first_time()) end(2, format_text("rendezvous {}: {}", endpoint_.text(), what), true);
}

bool Coordinator::is_gone(NodeClient& client) {
  if (client.store.closed()) return true;
  const bool refused = client.state == State::kRefused;
  return client.store.silence() > (refused ? kRefusedPatience : timeout_);
}

void Coordinator::drop_gone() {
  table_.clients().remove_if([this](NodeClient& client) {
    const bool gone = is_gone(client);
    if (gone && client.state == State::kRunning) {
      gone_ += format_text("{}{} is gone", gone_.empty() ? "" : ", ", name_of(client));
    }
    return gone;
  });
}

void Coordinator::beat() {
  if (StreamClock::now() < next_beat_) return;
  next_beat_ = StreamClock::now() + beat_interval(timeout_);
  for (NodeClient& client : table_.clients()) {
    if (client.state != State::kRefused) client.store.set("beat");
  }
}

// ---- Attempts: begin, assignment, end, next ----

void Coordinator::gather() {
  const int here = table_.count(State::kWaiting);
  const bool late = StreamClock::now() >= deadline_;
  if (here < places() && !late) return;
  const std::vector<int> absent = table_.deal();
  if (here == places()) return begin_attempt();
  if (here < enough()) {
    const std::string why = missing(absent);
    return end(1, line_.empty() ? why : format_text("{}; {}", line_, why), true);
  }
  if (first_time()) {
    notice_ =
        format_text("{}; starting with {} node{}", missing(absent), here, here == 1 ? "" : "s");
  }
  begin_attempt();
}

// "nodes 1, 2 did not arrive at rendezvous HOST:PORT within 30 s: node 0 (a) is there"
std::string Coordinator::missing(const std::vector<int>& seats) const {
  std::vector<std::string> there;
  for (int seat = 0; seat < places(); ++seat) {
    const NodeClient* client = table_.at(seat);
    if (client != nullptr) there.push_back(format_text("{} ({})", seat, client->hello.host));
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
  const std::vector<NodeClient*> nodes = table_.number();
  Assignment& a = assignment_;
  a.nodes = running_ = static_cast<int>(nodes.size());
  a.world = 0;
  for (const NodeClient* node : nodes) a.world += node->hello.nproc;
  if (first_time()) a.first_world = a.world;
  const NodeClient& master = *nodes.front();
  a.master_address = master.hello.own ? endpoint_.host : master.address;
  a.master_port = master.hello.free_port;
  Turn turn{.start = true, .assignment = a};
  turn.assignment.first_rank = 0;
  for (NodeClient* node : nodes) {
    turn.assignment.node = node->node;
    turn.line = node->hello.own ? line_ : "";
    turn.notice = node->hello.own ? notice_ : "";
    node->store.set("turn", to_value(turn));
    node->state = State::kRunning;
    node->failing = 0;
    turn.assignment.first_rank += node->hello.nproc;
  }
  stopping_ = false;
  failing_ = 0;
  line_.clear();
  notice_.clear();
  gone_.clear();
}

// Blocks until no rank is left on any host.
void Coordinator::watch_attempt() {
  bool failing = !gone_.empty();
  for (const NodeClient& client : table_.clients()) {
    const bool failed = client.state == State::kEnded && has_failed(client.outcome.status);
    failing = failing || failed || client.failing > 0;
  }
  if (failing && !stopping_) stop_all();
  if (stopping_ && StreamClock::now() >= deadline_) {
    for (NodeClient* client : table_.in_state(State::kRunning)) client->store.close();
    drop_gone();
  }
  if (table_.count(State::kRunning) == 0) end_attempt();
}

void Coordinator::stop_all() {
  stopping_ = true;
  deadline_ = StreamClock::now() + plan_.grace + kStopPatience;
  for (NodeClient* client : table_.in_state(State::kRunning)) {
    client->store.set("stop", to_value(StopOrder{.restart = assignment_.restart}));
  }
}

void Coordinator::end_attempt() {
  Outcome all{.status = gone_.empty() ? 0 : 1};
  int stop = 0;                       // the status of hosts that a signal has stopped
  const NodeClient* first = nullptr;  // the first host to fail with a reason
  for (const NodeClient* client : table_.in_state(State::kEnded)) {
    const Outcome& one = client->outcome;
    (has_failed(one.status) ? all.status : stop) =
        std::max(has_failed(one.status) ? all.status : stop, one.status);
    all.interrupted = all.interrupted || one.interrupted;
    all.spoke = all.spoke || one.spoke;
    if (all.line.empty()) all.line = one.line;
    const bool says = one.spoke && !one.line.empty();
    if (says && (first == nullptr || client->failing < first->failing)) first = client;
  }
  // Ranks that a second signal ended at once make those of other hosts fail.
  if (stop != 0 && (all.status == 0 || !all.spoke)) all = {.status = stop, .interrupted = true};
  if (all.line.empty()) all.line = gone_;
  if (all.spoke) all.line.clear();
  line_ = first == nullptr ? "" : first->outcome.line;
  const auto notice = point_.start_again(all, assignment_);
  if (!notice) return end(all.status, line_.empty() ? all.line : line_, false);
  for (NodeClient* client : table_.in_state(State::kEnded)) client->state = State::kWaiting;
  notice_ = format_text("{}{}{}", all.line, all.line.empty() ? "" : "; ", *notice);
  running_ = 0;
  const bool will_do = table_.count(State::kWaiting) >= enough();
  const std::chrono::milliseconds return_patience = kReturnPatience;
  deadline_ = StreamClock::now() + (will_do ? std::min(timeout_, return_patience) : timeout_);
}

// `to_all`: every launcher prints the line; else only the one of this host.
void Coordinator::end(int status, const std::string& line, bool to_all) {
  over_ = true;
  end_ = {.status = status, .line = line};
  end_line_to_all_ = to_all;
  for (NodeClient& client : table_.clients()) {
    if (client.state != State::kRefused) tell_end(client);
  }
}

void Coordinator::tell_end(NodeClient& client) {
  Turn turn = end_;
  if (!end_line_to_all_ && !client.hello.own) turn.line.clear();
  client.store.set("turn", to_value(turn));
}

}  // namespace ofsdp::cli
