// One of several hosts: the launcher that runs on the endpoint's host starts the coordinator, and
// all, that one too, are its guests.

#include <algorithm>
#include <thread>

#include "fsdp/comm/host_name.h"
#include "runtime/cli/launch/coordinator.h"
#include "runtime/cli/launch/host_ranks.h"
#include "runtime/cli/launch/node_channel.h"
#include "runtime/cli/launch/node_messages.h"

namespace ofsdp::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice{50};
constexpr std::chrono::milliseconds kRetry{100};
constexpr const char* kNoAnswer = "no launcher answers there";

class RendezvousLink final : public NodeLink {
 public:
  RendezvousLink(const LaunchPlan& plan, const SignalQueue& signals)
      : plan_(plan), signals_(signals), timeout_(timeout_of(plan.options)) {}

  Result<Turn> next(const Outcome* last) override {
    if (last == nullptr) {
      OFSDP_ASSIGN_OR_RETURN(endpoint_, parse_endpoint(plan_.options.rdzv_endpoint));
      OFSDP_RETURN_IF_ERROR(join());
    } else {
      channel_.send(to_json(*last, free_port()));
    }
    while (!turn_ && !lost()) {
      OFSDP_RETURN_IF_ERROR(wait_a_little());
      exchange();
    }
    if (!turn_) return end_without_others(last);
    return *std::exchange(turn_, std::nullopt);
  }

  int fd() const override { return channel_.fd(); }
  void failing() override { channel_.send({{"kind", "failing"}}); }

  bool told_to_stop() override {
    exchange();
    return stop_ || turn_ || lost();
  }

 private:
  // One line is enough: that of a rank, where one has noticed.
  Result<Turn> end_without_others(const Outcome* last) const {
    if (last == nullptr || !last->spoke) {
      return fault("the launcher at rendezvous {} is gone", endpoint_.text());
    }
    Turn turn;
    turn.status = last->status;
    turn.line = last->line;
    return turn;
  }

  bool lost() { return channel_.closed() || channel_.silence() > timeout_; }

  Status wait_a_little() const {
    if (!signals_.wait(channel_.fd(), kSlice).interrupts()) return {};
    return fault("interrupted at rendezvous {}", endpoint_.text());
  }

  // The coordinator may not be there yet, or still hold the job before.
  Status join() {
    const Clock::time_point deadline = Clock::now() + timeout_;
    std::string problem;
    while (true) {
      if (coordinator_ == nullptr) {
        if (auto listener = listen_at(endpoint_)) {
          coordinator_ = std::make_unique<Coordinator>(*std::move(listener), endpoint_, plan_);
        }
      }
      OFSDP_ASSIGN_OR_RETURN(problem, try_to_join(deadline, problem));
      if (problem.empty()) return {};
      if (Clock::now() >= deadline) break;
      if (signals_.wait(-1, kRetry).interrupts()) {
        return fault("interrupted on the way to rendezvous {}", endpoint_.text());
      }
    }
    return fault("cannot join rendezvous {} within {:g} s: {}", endpoint_.text(),
                 plan_.options.timeout_seconds, problem);
  }

  // Why not yet, or nothing. `before`: why not the last time.
  Result<std::string> try_to_join(Clock::time_point deadline, const std::string& before) {
    Connection connection = connect_to(endpoint_);
    if (!connection.problem.empty()) return connection.problem;
    channel_ = NodeChannel(std::move(connection.socket));
    channel_.send(to_json(hello()));
    refused_.clear();
    for (welcome_ = false; !welcome_ && !turn_ && refused_.empty();) {
      if (lost() || Clock::now() >= deadline)
        return before.empty() ? std::string(kNoAnswer) : before;
      OFSDP_RETURN_IF_ERROR(wait_a_little());
      exchange();
    }
    if (welcome_ || turn_) return std::string();
    if (!try_again_) return input_error("rendezvous {}: {}", endpoint_.text(), refused_);
    return refused_;
  }

  Hello hello() const {
    Hello hello;
    hello.job = plan_.options.rdzv_id;
    hello.node_rank = static_cast<int>(plan_.options.node_rank.value_or(-1));
    hello.nnodes = static_cast<int>(plan_.options.nnodes);
    hello.nproc = static_cast<int>(plan_.options.nproc_per_node);
    hello.free_port = free_port();
    hello.host = host_name();
    hello.own = coordinator_ != nullptr;
    return hello;
  }

  void exchange() {
    channel_.pump();
    while (const auto message = channel_.receive()) hear(*message);
    if (Clock::now() < next_beat_) return;
    next_beat_ = Clock::now() + beat_interval(timeout_);
    channel_.send({{"kind", "beat"}});
  }

  void hear(const json& message) {
    const std::string kind = kind_of(message);
    if (kind == "welcome") welcome_ = true;
    if (kind == "stop") stop_ = true;
    if (kind == "start" || kind == "end") {
      turn_ = read_turn(message);
      stop_ = false;  // it was meant for the attempt before, whose ranks may have ended without it
    }
    if (kind != "refused") return;
    refused_ = text_in(message, "why");
    try_again_ = flag_in(message, "again");
  }

  const LaunchPlan plan_;
  const SignalQueue& signals_;
  const std::chrono::milliseconds timeout_;
  Endpoint endpoint_;
  std::unique_ptr<Coordinator> coordinator_;  // where this host is the endpoint's
  NodeChannel channel_;                       // closed before the coordinator waits for that
  Clock::time_point next_beat_{};
  bool welcome_ = false;
  bool stop_ = false;
  std::string refused_;  // why
  bool try_again_ = false;
  std::optional<Turn> turn_;  // that was said and not yet taken
};

}  // namespace

std::unique_ptr<NodeLink> make_rendezvous_link(const LaunchPlan& plan, const SignalQueue& signals) {
  return std::make_unique<RendezvousLink>(plan, signals);
}

}  // namespace ofsdp::cli
