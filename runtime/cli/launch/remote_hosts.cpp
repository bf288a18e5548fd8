#include "runtime/cli/launch/remote_hosts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>

#include "fsdp/comm/store/job_secret.h"
#include "kernels/base/own_folder.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/cli/launch/signal_queue.h"

namespace ofsdp::cli {
namespace {

constexpr int kRshFailed = 255;  // ssh's own exit status
constexpr int kNoProgram = 127, kNotExecutable = 126;
constexpr std::chrono::milliseconds kLookAtHosts{200};
constexpr std::chrono::seconds kEndByThemselves{10};

std::string quoted_word(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool goes_along(std::string_view variable) {
  for (const std::string_view secret : {"OFSDP_SECRET=", "OFSDP_SECRET_FILE="}) {
    if (variable.starts_with(secret)) return false;
  }
  return variable.starts_with("OFSDP_") || variable.starts_with("NCCL_") ||
         variable.starts_with("OMP_") || variable.starts_with("LD_LIBRARY_PATH=");
}

std::string exports(const HostSlots& host) {
  std::string text;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (goes_along(*variable)) text += " " + quoted_word(*variable);
  }
  if (host.some) text += " CUDA_VISIBLE_DEVICES=" + slots_text(host);
  return text.empty() ? "" : "export" + text + "; ";
}

// The host's own words come last, where they count, but before a `--`.
std::vector<std::string> own_words(const LaunchOptions& launch, size_t node,
                                   std::vector<std::string> arguments, const std::string& run_id) {
  std::vector<std::string> own = {
      "--hostfile",       "none",
      "--nnodes",         std::to_string(launch.nnodes),
      "--node-rank",      std::to_string(node),
      "--nproc-per-node", std::to_string(launch.hosts[node].slots.size()),
      "--rdzv-endpoint",  launch.rdzv_endpoint,
      "--rdzv-id",        run_id};
  const auto reset = [&own](const char* flag, bool given) {
    if (given) own.insert(own.end(), {flag, "none"});
  };
  reset("--include", !launch.include.empty());
  reset("--exclude", !launch.exclude.empty());
  reset("--master-addr", !launch.master_addr.empty());
  reset("--master-port", launch.master_port.has_value());
  if (launch.min_nodes) own.insert(own.end(), {"--min-nodes", std::to_string(*launch.min_nodes)});
  arguments.insert(std::ranges::find(arguments, "--"), own.begin(), own.end());
  return arguments;
}

class RemoteHost {
 public:
  RemoteHost(const std::string& name, std::vector<std::string> command)
      : name_(name), command_(std::move(command)) {}

  Status start(const SignalQueue& signals, const std::string& secret) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fault("pipe: {}", std::strerror(errno));
    const UniqueFd reads(ends[0]);
    tie_ = UniqueFd(ends[1]);
    std::vector<char*> words;
    for (std::string& word : command_) words.push_back(word.data());
    words.push_back(nullptr);
    const pid_t launcher = getpid();
    pid_ = fork();
    if (pid_ < 0) return fault("fork: {}", std::strerror(errno));
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != launcher) _exit(1);
      setpgid(0, 0);  // a terminal's Ctrl-C is ours to pass on
      dup2(reads.get(), STDIN_FILENO);
      signals.restore();
      execvp(words[0], words.data());
      _exit(kNoProgram);
    }
    const std::string line = secret + "\n";
    const bool told = write(tie_.get(), line.data(), line.size()) == std::ssize(line);
    return told ? Status() : fault("{}: cannot write to {}", name_, command_[0]);
  }

  // Takes in its end; whether it still runs.
  bool running() {
    int status = 0;
    if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) != pid_) return pid_ >= 0;
    pid_ = -1;
    tie_.reset();
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    return false;
  }

  void let_go() { tie_.reset(); }
  void end() const {
    if (pid_ >= 0) kill(pid_, SIGTERM);
  }
  int status() const { return status_; }
  bool not_reached() const {
    return status_ == kRshFailed || status_ == kNoProgram || status_ == kNotExecutable;
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::vector<std::string> command_;
  UniqueFd tie_;
  pid_t pid_ = -1;
  int status_ = 0;
};

class RemoteHosts {
 public:
  RemoteHosts(const LaunchOptions& launch, std::vector<RemoteHost> hosts)
      : launch_(launch), hosts_(std::move(hosts)) {}

  Result<int> run(const std::string& secret) {
    const SignalQueue signals;
    Status started;
    for (RemoteHost& host : hosts_) {
      if (started.ok()) started = host.start(signals, secret);
    }
    if (!started.ok()) let_all_go();
    while (any_running()) {
      if (too_few_reached() || too_few_for_long()) let_all_go();
      if (!signals.wait(-1, kLookAtHosts).interrupts()) continue;
      if (interrupted_) end_all();
      interrupted_ = true;
      let_all_go();
    }
    if (!started.ok()) return started;
    return outcome();
  }

 private:
  bool any_running() {
    bool any = false;
    for (RemoteHost& host : hosts_) any = host.running() || any;
    return any;
  }

  bool too_few_without(int64_t lost) const {
    return std::ssize(hosts_) - lost < launch_.min_nodes.value_or(launch_.nnodes);
  }

  // The others would wait at the meeting until the timeout.
  bool too_few_reached() const {
    return too_few_without(std::ranges::count_if(hosts_, &RemoteHost::not_reached));
  }

  // So they would for a launcher that has failed before it came. After one that fails later all
  // end by themselves, in less time than this.
  bool too_few_for_long() {
    const auto failed = [](const RemoteHost& host) { return host.status() != 0; };
    if (!too_few_without(std::ranges::count_if(hosts_, failed))) return false;
    const auto now = std::chrono::steady_clock::now();
    if (!failed_at_) failed_at_ = now;
    return now - *failed_at_ > kEndByThemselves;
  }

  void let_all_go() {
    for (RemoteHost& host : hosts_) host.let_go();
  }
  void end_all() {
    for (RemoteHost& host : hosts_) host.end();
  }

  // The launchers have printed why they failed.
  Result<int> outcome() const {
    int status = 0;
    for (const RemoteHost& host : hosts_) {
      if (host.not_reached() && too_few_reached()) {
        return fault("host {}: '{}' ended with status {}: expected it to run fsdp-run there",
                     host.name(), launch_.rsh, host.status());
      }
      if (!host.not_reached()) status = std::max(status, host.status());
    }
    return status;
  }

  const LaunchOptions& launch_;
  std::vector<RemoteHost> hosts_;
  bool interrupted_ = false;
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
};

}  // namespace

std::string slots_text(const HostSlots& host) {
  std::string text;
  for (const int64_t slot : host.slots) text += (text.empty() ? "" : ",") + std::to_string(slot);
  return text;
}

std::vector<std::string> remote_command(const LaunchOptions& launch, size_t node,
                                        const std::string& program,
                                        const std::vector<std::string>& arguments,
                                        const std::string& run_id) {
  std::string words = quoted_word(program);
  for (const std::string& word : own_words(launch, node, arguments, run_id)) {
    words += " " + quoted_word(word);
  }
  std::error_code ignored;
  const std::string folder = std::filesystem::current_path(ignored).string();
  // Descriptor 3 is standard input, which a shell takes from what runs in the background.
  const std::string script =
      "IFS= read -r OFSDP_SECRET; export OFSDP_SECRET; " + exports(launch.hosts[node]) + "cd " +
      quoted_word(folder) + " || exit 1; exec 3<&0; " + words +
      " </dev/null 3<&- & run=$!; { cat <&3; kill -TERM $run; } >/dev/null 2>&1 & tie=$!; "
      "exec 3<&-; wait $run; status=$?; kill $tie 2>/dev/null; exit $status";
  std::vector<std::string> command;
  std::istringstream rsh(launch.rsh);
  for (std::string word; rsh >> word;) command.push_back(word);
  command.push_back(launch.hosts[node].name);
  command.push_back("exec /bin/sh -c " + quoted_word(script));
  return command;
}

Result<int> launch_hosts(const LaunchOptions& launch, char* const* argv) {
  OFSDP_ASSIGN_OR_RETURN(JobSecret secret, JobSecret::from_environment());
  if (secret.empty()) secret = JobSecret::drawn();
  std::vector<std::string> arguments;
  for (char* const* word = argv + 1; *word != nullptr; ++word) arguments.emplace_back(*word);
  const std::string run_id = launch.rdzv_id.empty() ? unique_run_id() : launch.rdzv_id;
  std::vector<RemoteHost> hosts;
  for (size_t node = 0; node < launch.hosts.size(); ++node) {
    hosts.emplace_back(launch.hosts[node].name,
                       remote_command(launch, node, own_program(), arguments, run_id));
  }
  return RemoteHosts(launch, std::move(hosts)).run(secret.bytes());
}

}  // namespace ofsdp::cli
