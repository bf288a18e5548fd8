#include "runtime/cli/launcher.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ofsdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kGrace{3};  // for the others, once a rank has failed
constexpr int kCannotStart = 127;          // as a shell says it

struct Child {
  pid_t pid = -1;
  bool running = false;
  bool killed_here = false;
  int wait_status = 0;
};

// Signals are taken one by one with sigtimedwait, so that none comes between a look and a wait.
class SignalQueue {
 public:
  SignalQueue() {
    signal(SIGCHLD, SIG_DFL);  // an inherited "ignore" would hide the children's ends
    sigemptyset(&mine_);
    for (int number : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&mine_, number);
    sigprocmask(SIG_BLOCK, &mine_, &before_);
  }
  ~SignalQueue() { restore(); }
  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  // 0 when none came within `patience`.
  int next(std::chrono::milliseconds patience, siginfo_t& info) const {
    const timespec longest{patience.count() / 1000, patience.count() % 1000 * 1'000'000};
    const int number = sigtimedwait(&mine_, &info, &longest);
    return number > 0 ? number : 0;
  }

 private:
  sigset_t mine_;
  sigset_t before_;
};

// The environment of one rank: this process's, with ours on top.
class RankEnvironment {
 public:
  RankEnvironment(int rank, int nproc, int cores, const std::string& rendezvous) {
    set("RANK", std::to_string(rank));
    set("LOCAL_RANK", std::to_string(rank));
    set("WORLD_SIZE", std::to_string(nproc));
    set("LOCAL_WORLD_SIZE", std::to_string(nproc));
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", "29500");
    set("OFSDP_RENDEZVOUS", rendezvous);
    if (cores > 0) set("OFSDP_RANK_CORES", std::to_string(cores));
    // Compute threads that spin between kernels would take the other ranks' cores.
    if (getenv("OMP_WAIT_POLICY") == nullptr) set("OMP_WAIT_POLICY", "passive");
    for (char** variable = environ; *variable != nullptr; ++variable) inherit(*variable);
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char* const* get() const { return pointers_.data(); }

 private:
  void set(std::string_view name, std::string_view value) {
    texts_.push_back(fmt::format("{}={}", name, value));
  }
  void inherit(std::string_view variable) {
    const std::string_view prefix = variable.substr(0, variable.find('=') + 1);
    for (const std::string& text : texts_) {
      if (text.starts_with(prefix)) return;
    }
    texts_.emplace_back(variable);
  }

  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

// By its name, so that a list of processes shows it; through /proc where the file has been replaced.
std::string program_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || access(path.c_str(), X_OK) != 0) return "/proc/self/exe";
  return path.string();
}

std::string unique_rendezvous() {
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t got = getrandom(&random, sizeof random, 0);
  return fmt::format("fsdp-run-{}-{:016x}", getpid(), random);
}

// The cores of each rank, or none where there is not one for each: then the kernel places them.
std::vector<cpu_set_t> core_shares(int nproc) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < nproc) return {};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  }
  std::vector<cpu_set_t> shares(static_cast<size_t>(nproc));
  for (size_t i = 0; i < cores.size(); ++i) {
    CPU_SET(cores[i], &shares[i * shares.size() / cores.size()]);
  }
  return shares;
}

class Ranks {
 public:
  Ranks(int nproc, char* const* argv)
      : argv_(argv),
        program_(program_path()),
        shares_(core_shares(nproc)),
        rendezvous_(unique_rendezvous()),
        children_(static_cast<size_t>(nproc)) {}

  ~Ranks() { kill_rest(); }

  Status start(const SignalQueue& signals) {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      const int nproc = static_cast<int>(children_.size());
      const int cores = shares_.empty() ? 0 : cores_of_all() / nproc;  // the same for all
      const RankEnvironment environment(static_cast<int>(rank), nproc, cores, rendezvous_);
      const pid_t launcher = getpid();
      const pid_t pid = fork();
      if (pid < 0) return fault("cannot start rank {}: fork: {}", rank, std::strerror(errno));
      if (pid == 0) become_rank(rank, launcher, signals, environment);
      children_[rank] = {pid, true, false, 0};
    }
    return {};
  }

  Result<int> supervise(const SignalQueue& signals) {
    while (reap()) {
      siginfo_t info{};
      const int number = signals.next(std::chrono::milliseconds(100), info);
      // The terminal sends Ctrl-C to all ranks itself; what a process sent, only we have got.
      if ((number == SIGINT || number == SIGTERM) && info.si_code <= 0) send_all(number);
      if (failed_ && Clock::now() >= failed_at_ + kGrace) kill_rest();
    }
    return verdict();
  }

 private:
  // In the child, between fork and exec: only calls that are safe there.
  [[noreturn]] void become_rank(size_t rank, pid_t launcher, const SignalQueue& signals,
                                const RankEnvironment& environment) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1);  // it died before the line above
    if (!shares_.empty()) sched_setaffinity(0, sizeof(cpu_set_t), &shares_[rank]);
    signals.restore();
    execve(program_.c_str(), argv_, environment.get());
    _exit(kCannotStart);
  }

  int cores_of_all() const {
    int cores = 0;
    for (const cpu_set_t& share : shares_) cores += CPU_COUNT(&share);
    return cores;
  }

  // Takes in who has ended. False when nobody is left.
  bool reap() {
    bool any = false;
    for (Child& child : children_) {
      if (child.running && waitpid(child.pid, &child.wait_status, WNOHANG) == child.pid) {
        child.running = false;
        if (child.wait_status != 0) note_failure(child);
      }
      any = any || child.running;
    }
    return any;
  }

  void note_failure(const Child& child) {
    if (!failed_) failed_at_ = Clock::now();
    failed_ = true;
    // The rank that reports a failure and those that heard of it exit with the same status.
    if (WIFEXITED(child.wait_status) && reported_ == 0) reported_ = WEXITSTATUS(child.wait_status);
  }

  Result<int> verdict() const {
    if (!failed_) return 0;
    if (reported_ != 0 && reported_ != kCannotStart) return reported_ == 2 ? 2 : 1;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      const Child& child = children_[rank];
      if (WIFEXITED(child.wait_status) && WEXITSTATUS(child.wait_status) == kCannotStart) {
        return fault("rank {} (pid {}) could not be started", rank, child.pid);
      }
      if (!WIFSIGNALED(child.wait_status) || child.killed_here) continue;
      return fault("rank {} (pid {}) was killed by signal {}", rank, child.pid,
                   WTERMSIG(child.wait_status));
    }
    return 1;
  }

  void send_all(int number) const {
    for (const Child& child : children_) {
      if (child.running) kill(child.pid, number);
    }
  }

  // SIGKILL also ends a rank that is stopped.
  void kill_rest() {
    for (Child& child : children_) {
      if (!child.running) continue;
      child.killed_here = true;
      kill(child.pid, SIGKILL);
      waitpid(child.pid, &child.wait_status, 0);
      child.running = false;
    }
  }

  char* const* argv_;
  const std::string program_;
  std::vector<cpu_set_t> shares_;
  std::string rendezvous_;
  std::vector<Child> children_;
  bool failed_ = false;
  int reported_ = 0;  // the exit status of the first rank that ended by itself in failure
  Clock::time_point failed_at_;
};

}  // namespace

Result<int> launch_ranks(int nproc, char* const* argv) {
  const SignalQueue signals;
  Ranks ranks(nproc, argv);
  OFSDP_RETURN_IF_ERROR(ranks.start(signals));
  return ranks.supervise(signals);
}

}  // namespace ofsdp
