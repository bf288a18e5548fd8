// Coordinator: the server of a rendezvous, a thread of the launcher whose host the endpoint names.
// It gathers the launchers, says what each starts, and when a rank of any host fails or a launcher
// is gone, has all ranks stopped and starts the next attempt.
//
// An attempt begins when --nnodes launchers are there, or when the time is up and --min-nodes are.
// A launcher is gone when its connection ends or says nothing for the timeout. One that comes later
// takes a free place in the next attempt.
//
// Launchers prove the job's secret first (fsdp/comm/store/doorkeeper.h).
//
// Ownership: owns the listening sockets and the connections; the secret is the caller's. Threads:
// made and destroyed by one; the destructor returns when all launchers have been told the end, or
// cannot be. Errors: what ends the run goes to the launchers; nothing comes back here.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/comm/store/doorkeeper.h"
#include "runtime/cli/launch/endpoint.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/cli/launch/restart.h"

namespace ofsdp::cli {

// How long a launcher waits for news before it looks after its ranks and its clocks again.
inline constexpr std::chrono::milliseconds kSlice{50};

// How often a launcher and the coordinator say that they are there.
std::chrono::milliseconds beat_interval(std::chrono::milliseconds timeout);

// A launcher, as the coordinator sees it.
struct NodeClient {
  enum class State { kRefused, kWaiting, kRunning, kEnded };

  Store store;
  std::string address;  // as seen from here
  State state = State::kRefused;
  NodeHello hello;
  int seat = -1;    // of its host among all
  int node = -1;    // number in the present attempt
  int failing = 0;  // 0, or its number among those that have said that a rank failed
  Outcome outcome;  // of kEnded
};

// The launchers that have come, and the numbers of their hosts. A launcher that says --node-rank
// has that seat; the others get the lowest free ones in order of arrival, and keep them from one
// attempt to the next. When hosts are gone the numbers close up.
class NodeTable {
 public:
  explicit NodeTable(int seats) : seats_(seats) {}

  std::list<NodeClient>& clients() { return clients_; }
  std::vector<NodeClient*> in_state(NodeClient::State state);
  int count(NodeClient::State state) { return static_cast<int>(in_state(state).size()); }
  // The client that holds this seat, or null.
  const NodeClient* at(int seat) const;
  // Gives every waiting client a seat, and returns which of 0 .. seats-1 nobody has.
  std::vector<int> deal();
  // Numbers the waiting clients for an attempt, in the order of their seats.
  std::vector<NodeClient*> number();

 private:
  int seats_;
  std::list<NodeClient> clients_;  // in order of arrival; their addresses do not change
};

class Coordinator {
 public:
  // Errors: kFault, when there is no thread to be had.
  static Result<std::unique_ptr<Coordinator>> start(Listener listener, const JobSecret& secret,
                                                    const Endpoint& endpoint,
                                                    const LaunchPlan& plan);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();

 private:
  using State = NodeClient::State;

  Coordinator(Listener listener, const JobSecret& secret, const Endpoint& endpoint,
              const LaunchPlan& plan);
  void serve();
  void look();
  void take_in(NodeClient& client);
  void greet(NodeClient& client);
  void refuse(NodeClient& client, const std::string& why, bool again);
  void contradiction(NodeClient& client, const std::string& what);
  bool is_gone(NodeClient& client);
  void drop_gone();
  void beat();

  void gather();
  void begin_attempt();
  std::string missing(const std::vector<int>& seats) const;
  void watch_attempt();
  void stop_all();
  void end_attempt();
  void end(int status, const std::string& line, bool to_all);

  bool gathering() const { return running_ == 0; }
  bool first_time() const { return assignment_.first_world == 0; }
  int places() const { return static_cast<int>(plan_.options.nnodes); }
  int enough() const { return static_cast<int>(plan_.options.min_nodes.value_or(places())); }

  const LaunchPlan plan_;
  const Endpoint endpoint_;
  const std::chrono::milliseconds timeout_;
  const RestartPoint point_;
  Listener listener_;
  Doorkeeper door_;
  NodeTable table_;
  Assignment assignment_;  // what all launchers are told alike
  StreamClock::time_point deadline_;
  StreamClock::time_point next_beat_{};
  int running_ = 0;        // nodes of the present attempt, 0 while gathering
  bool stopping_ = false;  // its ranks have been told to stop
  std::string gone_;       // nodes that this attempt has lost, for a line
  int failing_ = 0;        // nodes that have said that a rank of theirs failed
  std::string line_;       // of a rank: why the attempt before failed; not printed yet
  std::string notice_;     // for the next attempt
  bool over_ = false;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace ofsdp::cli
