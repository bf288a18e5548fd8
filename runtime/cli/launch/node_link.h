// NodeLink connects a launcher with other hosts' launchers: it tells the launcher which ranks to
// start, takes the outcome, and returns the next step. There is one kind for a single host and one
// for several hosts that meet at a rendezvous.
//
// Borrows the signals. `next` returns kInput if the commands of the launchers contradict each
// other, kFault if the others cannot be reached.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/comm/store/doorkeeper.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "runtime/cli/launch/node_messages.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// SignalQueue reads signals one by one from a descriptor, so none is lost between a check and a
// wait: SIGCHLD and signals that stop a run (runtime/log/log_parts.h). Must be made by the main
// thread before any other starts, since threads inherit the mask. The destructor restores the mask.
class SignalQueue {
 public:
  struct Heard {
    int number = 0;             // 0: none
    bool from_process = false;  // not from the terminal, which tells the ranks itself
    bool interrupts() const { return number != 0 && number != SIGCHLD; }
  };

  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue() { restore(); }
  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }  // also between fork, exec
  bool any_waits() const;  // a signal that stops the run has come, and `wait` has not returned it

  // Until a signal comes, `fd` (unless -1) can be read, or `patience` is over.
  Heard wait(int fd, std::chrono::milliseconds patience) const;

 private:
  sigset_t before_;
  UniqueFd fd_;
};

class NodeLink {
 public:
  virtual ~NodeLink() = default;
  // Waits until all agree. `last`: how this host's ranks ended; null at first.
  virtual Result<Turn> next(const Outcome* last) = 0;
  virtual int fd() const { return -1; }  // readable when another launcher has said something
  virtual void failing() {}              // a rank on this host has failed; the others go on
  virtual bool told_to_stop() { return false; }  // REQUIRES: asked every tenth of a second
};

// The options that launchers need.
struct LaunchPlan {
  LaunchOptions options;
  std::string checkpoint_dir;             // empty: none
  std::string output;                     // empty: none
  FindFolder find_folder = {};            // the folder that the run makes; may be empty
  std::chrono::milliseconds grace{3000};  // for the other ranks, once one has failed
};

std::chrono::milliseconds timeout_of(const LaunchOptions& options);

// Returns the kind for several hosts if the options name a rendezvous.
std::unique_ptr<NodeLink> make_node_link(const LaunchPlan& plan, const SignalQueue& signals);

// Returns an id that all ranks in a run share, and no other run has.
std::string unique_run_id();

// Endpoint: one host's address and a port, at which launchers meet.

inline constexpr int kRendezvousPort = 29400;  // torchrun's

struct Endpoint {
  std::string host;
  int port = kRendezvousPort;
  std::string text() const;
};

// Parses HOST, HOST:PORT or [IPV6]:PORT; else kInput.
Result<Endpoint> parse_endpoint(const std::string& text);

// A launcher waits so long for news before it checks its ranks and clocks again.
inline constexpr std::chrono::milliseconds kSlice{50};

// The interval at which launcher and coordinator show that they live.
std::chrono::milliseconds beat_interval(std::chrono::milliseconds timeout);

// A launcher as the coordinator sees it.
struct NodeClient {
  enum class State { kRefused, kWaiting, kRunning, kEnded };

  Store store;
  std::string address;  // as seen from here
  State state = State::kRefused;
  NodeHello hello;
  int seat = -1;    // the host's index among all
  int node = -1;    // index in the present attempt
  int failing = 0;  // 0, or the position among reported failures
  Outcome outcome;  // REQUIRES: state is kEnded
};

// The launchers that have come and their hosts' numbers. A launcher with --node-rank has that seat;
// others get the lowest free seats as they arrive, and keep them in later attempts. If hosts are
// gone, the numbers close up.
class NodeTable {
 public:
  explicit NodeTable(int seats) : seats_(seats) {}

  std::list<NodeClient>& clients() { return clients_; }
  std::vector<NodeClient*> in_state(NodeClient::State state);
  int count(NodeClient::State state) { return static_cast<int>(in_state(state).size()); }
  // Returns the client with this seat, or null.
  const NodeClient* at(int seat) const;
  // Gives every waiting client a seat, and returns the seats 0 .. seats-1 that stay empty.
  std::vector<int> deal();
  // Numbers the waiting clients for an attempt, ordered by seat.
  std::vector<NodeClient*> number();

 private:
  int seats_;
  std::list<NodeClient> clients_;  // as they arrived; their addresses do not change
};

// Coordinator: the rendezvous server, in a launcher thread on the endpoint's host. It gathers the
// launchers and tells each which ranks to start. If a rank on any host fails or a launcher is gone,
// it has all ranks stopped and starts the next attempt.
//
// An attempt begins when --nnodes launchers have joined, or, after the time limit, if --min-nodes
// have. A launcher is gone if the connection ends or is silent for the timeout. A launcher that
// comes later takes a free seat in the next attempt. Launchers must prove the job's secret first
// (fsdp/comm/store/doorkeeper.h).
//
// Owns the sockets and connections; borrows the secret. The destructor blocks until all launchers
// have been told the end, or cannot be. Errors are sent to the launchers; none is returned here.
class Coordinator {
 public:
  // Returns kFault if no thread can be started.
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
  void tell_end(NodeClient& client);

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
  Assignment assignment_;  // the part that is the same for all launchers
  StreamClock::time_point deadline_;
  StreamClock::time_point next_beat_{};
  int running_ = 0;        // nodes in the present attempt, 0 while gathering
  bool stopping_ = false;  // the ranks have been told to stop
  std::string gone_;       // nodes lost in this attempt, for a message
  int failing_ = 0;        // nodes that have reported a failed rank
  std::string line_;       // from a rank: why the last attempt failed; not printed yet
  std::string notice_;     // for the next attempt
  bool over_ = false;
  Turn end_;  // REQUIRES: over_
  bool end_line_to_all_ = false;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace ofsdp::cli
