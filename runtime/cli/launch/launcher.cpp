#include "runtime/cli/launch/launcher.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/comm/rank_identity.h"
#include "importer/write/model_output.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/log/log_parts.h"

namespace ofsdp::cli {
namespace {

// The ranks of this host: child processes with the same program and arguments.
//
// If there is a core for each rank, ranks get equal shares of this process's cores. They die with
// the launcher, even if it is killed. If a rank fails, or `end_soon` is called, the others have a
// few seconds to end, then they are killed; stopped ones are killed at once. A rank that stays
// stopped for longer than the timeout is killed, since others may wait for it. Time in which the
// launcher itself was stopped (Ctrl-Z) does not count.
//
// If the run has several hosts, a rank sends its failure message to the launcher through a pipe
// instead of printing it, so that the launchers print one message in all.
//
// No child is left after the destructor. Must be used by the main thread, since the kernel ends
// children with the thread that forked them. Errors: kFault if a rank cannot be started.

// The environment of one rank: the launcher's, with torchrun's variables and ours
// (docs/internals/launch.md lists them). Must outlive the result of `get`.
class RankEnvironment {
 public:
  // `cores`: for each rank, 0 if they share all. `failure_fd`: where the rank reports a failure;
  // -1: stderr.
  RankEnvironment(const Assignment& assignment, int local_rank, int local_world, int cores,
                  int failure_fd);
  char* const* get() const { return pointers_.data(); }

 private:
  void set(std::string_view name, std::string_view value);
  void set(std::string_view name, int value) { set(name, std::to_string(value)); }
  void inherit(std::string_view variable);

  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

class HostRanks {
 public:
  // `argv` as in main.
  HostRanks(const Assignment& assignment, const LaunchPlan& plan, char* const* argv);
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;
  ~HostRanks() { kill_rest(); }

  Status start(const SignalQueue& signals);
  bool reap();  // collects ended children; false if none is left
  // A rank has failed, or a signal has ended one at once, for which the others would wait.
  bool others_must_end() const { return failed_ || cut_off_; }
  void note_interrupt() { interrupted_ = true; }
  void end_soon();   // starts the grace period, unless it has started
  void kill_late();  // after the grace period kills all; before it, stopped ones
  void send_all(int number) const;
  Outcome outcome() const;
  // Returns a hint if the kernel's counter shows that a rank was killed for lack of memory.
  std::string memory_hint() const;

 private:
  struct Child {
    pid_t pid = -1;
    bool running = false;
    bool killed_here = false;
    bool stopped = false;
    std::chrono::milliseconds stopped_for{0};
    int wait_status = 0;
  };

  [[noreturn]] void become_rank(size_t rank, pid_t launcher, const SignalQueue& signals,
                                const RankEnvironment& environment) const;
  int cores_of_each() const;
  void look_at(Child& child, std::chrono::milliseconds since);
  int stop_of(int wait_status) const;
  void note_failure(const Child& child);
  Status open_pipe();
  void listen();  // reads messages of the ranks
  std::string why() const;
  std::string name_of(size_t local_rank) const;
  static void end_here(Child& child);
  void kill_rest();

  Assignment assignment_;
  const std::chrono::milliseconds grace_;
  const std::chrono::milliseconds most_stopped_;
  char* const* argv_;
  std::string program_;
  const int64_t oom_kills_ = Cgroup().oom_kills();  // before this attempt
  std::vector<cpu_set_t> shares_;                   // empty: the kernel places the ranks
  std::vector<Child> children_;
  const SignalQueue* signals_ = nullptr;
  bool interrupted_ = false;  // a signal came that stops the run
  bool failed_ = false;
  bool cut_off_ = false;   // such a signal ended a rank at once
  int stopped_by_ = 0;     // such a signal stopped a rank; 0: none
  UniqueFd heard_, told_;  // the ends of the pipe; unused with one host
  std::string said_;       // messages of the ranks
  int reported_ = 0;       // exit status of the first rank that failed by itself
  std::optional<std::chrono::steady_clock::time_point> end_by_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

using Clock = std::chrono::steady_clock;

constexpr int kCannotStart = 127;                       // as in a shell
constexpr std::chrono::milliseconds kLongestLook{500};  // longer: this process was stopped

std::vector<cpu_set_t> own_shares(int nproc) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return {};
  return core_shares(all, nproc);
}

RankEnvironment::RankEnvironment(const Assignment& a, int local_rank, int local_world, int cores,
                                 int failure_fd) {
  set("RANK", a.first_rank + local_rank);
  set("WORLD_SIZE", a.world);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", local_world);
  set("GROUP_RANK", a.node);
  set("GROUP_WORLD_SIZE", a.nodes);
  set("MASTER_ADDR", a.master_address);
  set("MASTER_PORT", a.master_port);
  set("TORCHELASTIC_RUN_ID", a.run_id);
  set("TORCHELASTIC_RESTART_COUNT", a.restart);
  // Unique for each host and attempt, since two launchers of a run may share a host.
  set("OFSDP_RENDEZVOUS", format_text("{}-{}-{}", a.run_id, a.node, a.restart));
  set("OFSDP_RESTART", a.restart == 0 ? "" : a.from_latest ? "latest" : "as given");
  set("OFSDP_FIRST_WORLD", a.first_world);
  set("OFSDP_FAILURE_FD", failure_fd < 0 ? "" : std::to_string(failure_fd));
  if (cores > 0) set("OFSDP_RANK_CORES", cores);
  // Compute threads that spin between kernels would take the other ranks' cores.
  if (getenv("OMP_WAIT_POLICY") == nullptr) set("OMP_WAIT_POLICY", "passive");
  for (char** variable = environ; *variable != nullptr; ++variable) inherit(*variable);
  for (std::string& text : texts_) pointers_.push_back(text.data());
  pointers_.push_back(nullptr);
}

void RankEnvironment::set(std::string_view name, std::string_view value) {
  texts_.push_back(format_text("{}={}", name, value));
}

void RankEnvironment::inherit(std::string_view variable) {
  const std::string_view prefix = variable.substr(0, variable.find('=') + 1);
  for (const std::string& text : texts_) {
    if (text.starts_with(prefix)) return;
  }
  texts_.emplace_back(variable);
}

HostRanks::HostRanks(const Assignment& assignment, const LaunchPlan& plan, char* const* argv)
    : assignment_(assignment),
      grace_(plan.grace),
      most_stopped_(timeout_of(plan.options) + plan.grace),
      argv_(argv),
      program_(own_program()),
      shares_(own_shares(static_cast<int>(plan.options.nproc_per_node))),
      children_(static_cast<size_t>(plan.options.nproc_per_node)) {}

Status HostRanks::start(const SignalQueue& signals) {
  const int nproc = static_cast<int>(children_.size());
  signals_ = &signals;
  if (assignment_.nodes > 1) OFSDP_RETURN_IF_ERROR(open_pipe());
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    const RankEnvironment environment(assignment_, static_cast<int>(rank), nproc, cores_of_each(),
                                      told_.get());
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) return fault("cannot start {}: fork: {}", name_of(rank), std::strerror(errno));
    if (pid == 0) become_rank(rank, launcher, signals, environment);
    children_[rank].pid = pid;
    children_[rank].running = true;
  }
  told_.reset();
  return {};
}

Status HostRanks::open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return fault("pipe: {}", std::strerror(errno));
  heard_ = UniqueFd(ends[0]);
  told_ = UniqueFd(ends[1]);
  return {};
}

void HostRanks::listen() {
  char buffer[4096];
  if (!heard_.valid()) return;
  for (ssize_t got; (got = read(heard_.get(), buffer, sizeof buffer)) > 0;) {
    said_.append(buffer, static_cast<size_t>(got));
  }
}

// Runs in the child between fork and exec: may only call functions that are safe there.
void HostRanks::become_rank(size_t rank, pid_t launcher, const SignalQueue& signals,
                            const RankEnvironment& environment) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher died before prctl
  if (!shares_.empty()) sched_setaffinity(0, sizeof(cpu_set_t), &shares_[rank]);
  if (told_.valid()) fcntl(told_.get(), F_SETFD, 0);
  signals.restore();
  execve(program_.c_str(), argv_, environment.get());
  _exit(kCannotStart);
}

// All ranks have the same number of cores.
int HostRanks::cores_of_each() const {
  int cores = 0;
  for (const cpu_set_t& share : shares_) cores += CPU_COUNT(&share);
  return cores / static_cast<int>(children_.size());
}

bool HostRanks::reap() {
  const Clock::time_point now = Clock::now();
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_);
  looked_ += since;
  bool any = false;
  for (Child& child : children_) {
    if (child.running) look_at(child, std::min(since, kLongestLook));
    any = any || child.running;
  }
  listen();
  return any;
}

void HostRanks::look_at(Child& child, std::chrono::milliseconds since) {
  for (int status; waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid;) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      child.stopped = WIFSTOPPED(status);
      child.stopped_for = {};
      continue;
    }
    child.running = false;
    child.wait_status = status;
    if (const int number = stop_of(status); number != 0) {
      stopped_by_ = number;
      cut_off_ = cut_off_ || WIFSIGNALED(status);
      if (cut_off_) end_soon();
    } else if (status != 0 && !cut_off_) {
      note_failure(child);
    }
    return;
  }
  if (!child.stopped) return;
  child.stopped_for += since;
  if (child.stopped_for > most_stopped_) kill(child.pid, SIGKILL);
}

// Returns the signal that stopped a rank, in order or at once; 0: none did.
int HostRanks::stop_of(int wait_status) const {
  if (WIFEXITED(wait_status)) return stopped_by(WEXITSTATUS(wait_status));
  const bool told = interrupted_ || signals_->any_waits();
  const int number = WTERMSIG(wait_status);
  return told && is_stop_signal(number) ? number : 0;
}

void HostRanks::note_failure(const Child& child) {
  failed_ = true;
  end_soon();
  // The rank that reports a failure and the ranks that hear of it exit with the same status.
  if (WIFEXITED(child.wait_status) && reported_ == 0) reported_ = WEXITSTATUS(child.wait_status);
}

void HostRanks::end_soon() {
  if (!end_by_) end_by_ = Clock::now() + grace_;
}

void HostRanks::kill_late() {
  if (!end_by_) return;
  const bool late = Clock::now() >= *end_by_;
  for (Child& child : children_) {
    if (late || child.stopped) end_here(child);
  }
}

Outcome HostRanks::outcome() const {
  Outcome outcome;
  outcome.spoke = (reported_ != 0 && reported_ != kCannotStart) || !said_.empty();
  for (const Child& child : children_) {
    if (failed_ || child.killed_here) outcome.status = 1;
  }
  if (outcome.spoke && reported_ == 2) outcome.status = 2;
  if (stopped_by_ != 0 && !failed_) outcome.status = stopped_status(stopped_by_);
  if (failed_ && !outcome.spoke) outcome.line = why();
  if (failed_) outcome.line += said_.substr(0, said_.find('\n'));
  return outcome;
}

std::string HostRanks::why() const {
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    const Child& child = children_[rank];
    if (WIFEXITED(child.wait_status) && WEXITSTATUS(child.wait_status) == kCannotStart) {
      return format_text("{} could not be started", name_of(rank));
    }
    if (!WIFSIGNALED(child.wait_status) || child.killed_here) continue;
    if (child.stopped_for > most_stopped_) return name_of(rank) + " was stopped, and did not go on";
    const std::string hint = memory_hint();
    return format_text("{} was killed by signal {}{}{}", name_of(rank), WTERMSIG(child.wait_status),
                       hint.empty() ? "" : ", ", hint);
  }
  return "";
}

std::string HostRanks::memory_hint() const {
  const bool killed = std::ranges::any_of(children_, [](const Child& child) {
    return !child.killed_here && WIFSIGNALED(child.wait_status) &&
           WTERMSIG(child.wait_status) == SIGKILL;
  });
  const int64_t kills = killed ? Cgroup().oom_kills() - oom_kills_ : 0;
  return kills > 0 ? format_text("perhaps for lack of memory (oom_kill {})", kills) : "";
}

std::string HostRanks::name_of(size_t local_rank) const {
  const int rank = assignment_.first_rank + static_cast<int>(local_rank);
  const pid_t pid = children_[local_rank].pid;
  return format_text("rank {} (pid {} on {})", rank, pid, host_name());
}

void HostRanks::send_all(int number) const {
  for (const Child& child : children_) {
    if (child.running) kill(child.pid, number);
  }
}

// SIGKILL also ends a stopped rank.
void HostRanks::end_here(Child& child) {
  if (!child.running) return;
  child.killed_here = true;
  kill(child.pid, SIGKILL);
  waitpid(child.pid, &child.wait_status, 0);
  child.running = false;
}

void HostRanks::kill_rest() {
  for (Child& child : children_) end_here(child);
}

int number_in(const std::string& path) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : 0;
}

// Returns socket, memory node, core and number; in this order neighbours are close.
std::array<int, 4> place_of(const std::string& root, int processor) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(processor);
  int node = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("node")) node = std::atoi(name.c_str() + 4);
  }
  return {number_in(folder + "/topology/physical_package_id"), node,
          number_in(folder + "/topology/core_id"), processor};
}

}  // namespace

std::vector<cpu_set_t> core_shares(const cpu_set_t& all, int nproc, const std::string& root) {
  if (CPU_COUNT(&all) < nproc) return {};
  std::vector<std::array<int, 4>> places;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &all)) places.push_back(place_of(root, processor));
  }
  std::ranges::sort(places);
  std::vector<cpu_set_t> shares(static_cast<size_t>(nproc));
  for (size_t i = 0; i < places.size(); ++i) {
    CPU_SET(places[i][3], &shares[i * shares.size() / places.size()]);
  }
  return shares;
}

namespace {

constexpr std::chrono::milliseconds kLook{100};

Status check(const LaunchOptions& o) {
  if (o.nnodes > 1 && o.rdzv_endpoint.empty()) {
    return input_error("--nnodes {}: expected --rdzv-endpoint HOST:PORT beside it, found none",
                       o.nnodes);
  }
  if (o.min_nodes && *o.min_nodes > o.nnodes) {
    return input_error("--min-nodes: expected at most {} as --nnodes, found {}", o.nnodes,
                       *o.min_nodes);
  }
  if (o.node_rank && *o.node_rank >= o.nnodes) {
    return input_error("--node-rank: expected 0 to {} as --nnodes is {}, found {}", o.nnodes - 1,
                       o.nnodes, *o.node_rank);
  }
  return {};
}

void say(const std::string& line) {
  if (!line.empty()) print_lines(stderr, "fsdp-run: " + line + "\n");
}

// Runs one attempt, until all ranks of this host have ended.
Result<Outcome> run_ranks(const Assignment& assignment, const LaunchPlan& plan, char* const* argv,
                          const SignalQueue& signals, NodeLink& link) {
  HostRanks ranks(assignment, plan, argv);
  OFSDP_RETURN_IF_ERROR(ranks.start(signals));
  bool interrupted = false, told = false;
  while (ranks.reap()) {
    if (ranks.others_must_end() && !told) link.failing();
    told = ranks.others_must_end();
    if (link.told_to_stop()) ranks.end_soon();
    ranks.kill_late();
    const SignalQueue::Heard heard = signals.wait(link.fd(), kLook);
    if (!heard.interrupts()) continue;
    interrupted = true;
    ranks.note_interrupt();
    if (heard.from_process) ranks.send_all(heard.number);
  }
  if (ranks.others_must_end() && !told) link.failing();
  Outcome outcome = ranks.outcome();
  outcome.interrupted = interrupted;
  if (outcome.spoke) say(ranks.memory_hint());  // else the hint is part of the line
  return outcome;
}

// Removes the files that the killed ranks of a failed run left next to the output and in the
// checkpoint folder: opening these places does so. Ignores errors, since the message about the
// failed run comes first.
void remove_leftovers(const LaunchPlan& plan, const std::string& run_id) {
  const std::string folder = plan.find_folder ? plan.find_folder(run_id) : "";
  const auto place = [&folder](const std::string& named, const char* otherwise) {
    return named.empty() && !folder.empty() ? join_path(folder, otherwise) : named;
  };
  const std::string output = place(plan.output, "model.onnx");
  const std::string saves = place(plan.checkpoint_dir, "checkpoints");
  if (!output.empty()) (void)check_output_path(output);
  if (is_folder(saves)) (void)CheckpointStore::open(saves, {});
}

}  // namespace

bool needs_launcher(const LaunchOptions& options) {
  return options.nproc_per_node > 1 || options.nnodes > 1 || options.max_restarts > 0 ||
         names_rendezvous(options);
}

bool names_rendezvous(const LaunchOptions& options) { return !options.rdzv_endpoint.empty(); }

Result<int> launch_ranks(const LaunchPlan& plan, char* const* argv) {
  OFSDP_RETURN_IF_ERROR(check(plan.options));
  const SignalQueue signals;
  const std::unique_ptr<NodeLink> link = make_node_link(plan, signals);
  OFSDP_ASSIGN_OR_RETURN(Turn turn, link->next(nullptr));
  bool first = false;  // this host has rank 0; its command names the files
  std::string run_id;
  while (turn.start) {
    first = turn.assignment.node == 0;
    run_id = turn.assignment.run_id;
    say(turn.line);
    say(turn.notice);
    OFSDP_ASSIGN_OR_RETURN(const Outcome outcome,
                           run_ranks(turn.assignment, plan, argv, signals, *link));
    OFSDP_ASSIGN_OR_RETURN(turn, link->next(&outcome));
  }
  if (turn.status == 1 && first) remove_leftovers(plan, run_id);
  if (turn.line.empty()) return turn.status;
  return Status(turn.status == 2 ? ErrorKind::kInput : ErrorKind::kFault, turn.line);
}

}  // namespace ofsdp::cli
