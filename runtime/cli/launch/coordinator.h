// Coordinator: the side of a rendezvous that all launchers connect to, a thread of the launcher
// whose host the endpoint names. It gathers the launchers, says what each starts, and when a rank
// of any host fails or a launcher is gone, has all ranks stopped and starts the next attempt.
//
// An attempt begins when --nnodes launchers are there, or when the time is up and --min-nodes are.
// A launcher is gone when its connection ends or says nothing for the timeout. One that comes later
// takes a free place in the next attempt.
//
// Ownership: owns the listening socket and the connections. Threads: made and destroyed by one;
// the destructor returns when all launchers have been told the end, or cannot be. Errors: what ends
// the run goes to the launchers; nothing comes back here.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/cli/launch/endpoint.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/cli/launch/node_table.h"
#include "runtime/cli/launch/restart_point.h"

namespace ofsdp::cli {

// How often a launcher and the coordinator say that they are there.
std::chrono::milliseconds beat_interval(std::chrono::milliseconds timeout);

class Coordinator {
 public:
  Coordinator(UniqueFd listener, const Endpoint& endpoint, const LaunchPlan& plan);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();

 private:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  void serve();
  void look();
  void let_in();
  void listen_to(NodeGuest& guest);
  void hear(NodeGuest& guest, const nlohmann::json& message);
  void greet(NodeGuest& guest, const nlohmann::json& message);
  void refuse(NodeGuest& guest, const std::string& why, bool again);
  void contradiction(NodeGuest& guest, const std::string& what);
  bool is_gone(NodeGuest& guest);
  void drop_gone();
  void beat();

  void gather();
  void begin_attempt();
  std::string missing(const std::vector<int>& seats) const;
  void watch_attempt();
  void stop_all();
  void end_attempt();
  std::string spoken_line();
  void end(int status, const std::string& line, bool to_all);

  bool gathering() const { return running_ == 0; }
  bool first_time() const { return assignment_.first_world == 0; }
  int places() const { return static_cast<int>(plan_.options.nnodes); }
  int enough() const { return static_cast<int>(plan_.options.min_nodes.value_or(places())); }

  const LaunchPlan plan_;
  const Endpoint endpoint_;
  const Milliseconds timeout_;
  RestartPoint point_;
  UniqueFd listener_;
  NodeTable table_;
  Assignment assignment_;  // what all launchers are told alike
  Clock::time_point deadline_;
  Clock::time_point next_beat_{};
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
