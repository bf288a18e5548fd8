#include "runtime/cli/launch/node_link.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp/comm/host_name.h"
#include "kernels/base/escaped.h"
#include "kernels/base/random_word.h"
#include "runtime/cli/launch/coordinator.h"

namespace ofsdp::cli {
namespace {

constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::milliseconds kConnectPatience{1000};  // for each address
constexpr const char* kNoAnswer = "no launcher answers there";

// One host: no other launcher has a say.
class LoneLink final : public NodeLink {
 public:
  explicit LoneLink(const LaunchPlan& plan)
      : point_(plan.checkpoint_dir, static_cast<int>(plan.options.max_restarts)) {
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

// One of several hosts. The launcher that runs on the endpoint's host starts the coordinator; all
// launchers, that one too, are its clients.
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
    // An order for an attempt before does not count: its ranks may have ended without it.
    return (stop && stop->restart == restart_) || store_.get("turn") != nullptr || lost();
  }

 private:
  // One line is enough: that of a rank, where one has noticed.
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

  // The coordinator may not be there yet, or still hold the job before.
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

  // Not valid where the endpoint is another host, or somebody listens there already.
  Listener listen_here() const {
    const std::vector<std::string> here = addresses_here(endpoint_.host);
    int port = endpoint_.port;
    auto listener = Listener::open(here, port);
    return here.empty() || !listener.ok() ? Listener() : *std::move(listener);
  }

  // Why not yet, or nothing. `before`: why not the last time.
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
        return before.empty() ? std::string(kNoAnswer) : before;
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
  HeldPort held_ = HeldPort::any();           // for rank 0, should it be here
  std::unique_ptr<Coordinator> coordinator_;  // where this host is the endpoint's
  Store store_;                               // closed before the coordinator waits for that
  StreamClock::time_point next_beat_{};
  int restart_ = 0;  // attempts before the present one
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

}  // namespace ofsdp::cli
