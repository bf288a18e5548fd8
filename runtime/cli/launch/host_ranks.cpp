#include "runtime/cli/launch/host_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fsdp/comm/host_name.h"
#include "kernels/base/own_folder.h"
#include "runtime/cli/launch/core_shares.h"

namespace ofsdp::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCannotStart = 127;                       // as a shell says it
constexpr std::chrono::milliseconds kLongestLook{500};  // more means that we did not run

std::vector<cpu_set_t> own_shares(int nproc) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return {};
  return core_shares(all, nproc);
}

}  // namespace

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
  // One for each host and attempt: two launchers of a run may share a host.
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

// In the child, between fork and exec: only calls that are safe there.
void HostRanks::become_rank(size_t rank, pid_t launcher, const SignalQueue& signals,
                            const RankEnvironment& environment) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // it died before the line above
  if (!shares_.empty()) sched_setaffinity(0, sizeof(cpu_set_t), &shares_[rank]);
  if (told_.valid()) fcntl(told_.get(), F_SETFD, 0);
  signals.restore();
  execve(program_.c_str(), argv_, environment.get());
  _exit(kCannotStart);
}

// The same for all.
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
    if (status != 0) note_failure(child);
    return;
  }
  if (!child.stopped) return;
  child.stopped_for += since;
  if (child.stopped_for > most_stopped_) kill(child.pid, SIGKILL);
}

void HostRanks::note_failure(const Child& child) {
  failed_ = true;
  end_soon();
  // The rank that reports a failure and those that heard of it exit with the same status.
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

// SIGKILL also ends a rank that is stopped.
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

}  // namespace ofsdp::cli
