#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/doorkeeper.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"
#include "kernels/core/device.h"
#include "runtime/cli/launch/launcher.h"
#include "runtime/cli/launch/node_link.h"
#include "runtime/log/log_parts.h"

namespace ofsdp::cli {

namespace {

constexpr int64_t kMaxSlots = 4096;
constexpr int64_t kMasterPort = 29500;  // as torchrun and DeepSpeed

std::vector<int64_t> first_slots(int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  return slots;
}

// Letters, digits and other characters in addresses and names; none that a shell or ssh interprets.
bool is_host(const std::string& name) {
  return !name.empty() && name[0] != '-' &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
             ".-_:@[]") == std::string::npos;
}

bool is_here(const std::string& name) {
  return name == "localhost" || name == "127.0.0.1" || name == host_name();
}

Result<HostSlots> read_line(const std::string& line, const std::string& at) {
  std::istringstream words(line);
  std::string name, slots, more;
  words >> name >> slots >> more;
  const std::optional<int64_t> count =
      slots.starts_with("slots=") ? parse_integer(slots.substr(6), 1) : std::nullopt;
  const bool rest = more.empty() || more[0] == '#' || more.starts_with("max_slots=") ||
                    more.starts_with("max-slots=");
  OFSDP_REJECT_IF(!is_host(name) || !count || *count > kMaxSlots || !rest,
                  "{}: expected HOST slots=N with N from 1 to {}, found '{}'", at, kMaxSlots, line);
  return HostSlots{name, first_slots(*count)};
}

// Parses one filter; a host without slots means all slots.
Result<std::vector<HostSlots>> parse_filter(const std::string& flag, const std::string& text) {
  std::vector<HostSlots> chosen;
  std::istringstream nodes(text);
  for (std::string node; std::getline(nodes, node, '@');) {
    const size_t colon = node.rfind(':');
    HostSlots host{node.substr(0, colon), {}};
    if (colon != std::string::npos) {
      for (const std::string& slot : split_list(node.substr(colon + 1))) {
        const std::optional<int64_t> number = parse_integer(slot, 0);
        OFSDP_REJECT_IF(!number, "{}: expected HOST[:SLOT,SLOT][@HOST...], found '{}'", flag, text);
        host.slots.push_back(*number);
      }
    }
    chosen.push_back(std::move(host));
  }
  return chosen;
}

Status apply(const HostSlots& chosen, bool keeps, const std::string& flag,
             std::vector<HostSlots>& from, std::vector<HostSlots>& to) {
  const auto known = std::ranges::find(from, chosen.name, &HostSlots::name);
  OFSDP_REJECT_IF(known == from.end(), "{}: the hostfile has no host '{}'", flag, chosen.name);
  for (const int64_t slot : chosen.slots) {
    OFSDP_REJECT_IF(std::ranges::count(known->slots, slot) == 0,
                    "{}: expected a slot of {} (0 to {}), found {}", flag, chosen.name,
                    known->slots.size() - 1, slot);
  }
  HostSlots& host = to[static_cast<size_t>(known - from.begin())];
  std::set<int64_t> slots(host.slots.begin(), host.slots.end());
  for (const int64_t slot : chosen.slots.empty() ? known->slots : chosen.slots) {
    keeps ? (void)slots.insert(slot) : (void)slots.erase(slot);
  }
  host.slots.assign(slots.begin(), slots.end());
  return {};
}

// Filters without a hostfile are for this host, with GPUs as slots.
Status filter_here(LaunchOptions& launch) {
  const Result<int> devices = count_devices();
  std::vector<HostSlots> chosen;
  if (devices.ok() && *devices > 0) {
    chosen = {{"localhost", first_slots(*devices)}};
    OFSDP_ASSIGN_OR_RETURN(chosen, filtered_hosts(chosen, launch.include, launch.exclude));
  } else {
    OFSDP_REJECT_IF(!launch.exclude.empty(), "--exclude: expected a --hostfile, or GPUs here");
    OFSDP_ASSIGN_OR_RETURN(chosen, parse_filter("--include", launch.include));
    const bool here = chosen.size() == 1 && is_here(chosen[0].name);
    OFSDP_REJECT_IF(!here, "--include {}: expected a --hostfile, or localhost alone",
                    launch.include);
    if (chosen[0].slots.empty()) chosen[0].slots = {0};
    chosen[0].some = true;
  }
  launch.nproc_per_node = std::ssize(chosen[0].slots);
  launch.hosts = chosen;
  return {};
}

Status read_hosts(LaunchOptions& launch) {
  const bool filters = !launch.include.empty() || !launch.exclude.empty();
  OFSDP_REJECT_IF(filters && (launch.most_hosts || launch.most_slots),
                  "--include and --exclude contradict --nnodes and --nproc-per-node: expected one "
                  "way to choose");
  OFSDP_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, read_hostfile(launch.hostfile));
  OFSDP_ASSIGN_OR_RETURN(hosts, filtered_hosts(std::move(hosts), launch.include, launch.exclude));
  const auto most = static_cast<size_t>(launch.most_hosts.value_or(kMaxRanks));
  if (hosts.size() > most) hosts.resize(most);
  for (HostSlots& host : hosts) {
    const auto slots = static_cast<size_t>(launch.most_slots.value_or(kMaxSlots));
    host.some = host.some || host.slots.size() > slots;
    if (host.slots.size() > slots) host.slots.resize(slots);
  }
  launch.hosts = std::move(hosts);
  OFSDP_REJECT_IF(asked_ranks(launch) > kMaxRanks, "--hostfile {}: expected at most {} slots",
                  launch.hostfile, kMaxRanks);
  return {};
}

// --no-ssh: this process is one host's launcher.
Status take_own_host(LaunchOptions& launch) {
  const int64_t count = std::ssize(launch.hosts);
  OFSDP_REJECT_IF(!launch.node_rank || *launch.node_rank >= count,
                  "--no-ssh: expected --node-rank from 0 to {}, as {} has {} hosts, found {}",
                  count - 1, launch.hostfile, count,
                  launch.node_rank ? std::to_string(*launch.node_rank) : "none");
  launch.nproc_per_node = std::ssize(launch.hosts[static_cast<size_t>(*launch.node_rank)].slots);
  if (launch.rdzv_endpoint.empty() && launch.master_addr.empty()) {
    launch.master_addr = launch.hosts[0].name;
  }
  return {};
}

Status resolve_hosts(LaunchOptions& launch) {
  // this rank's launcher has done it
  if (std::getenv("OFSDP_RENDEZVOUS") != nullptr) return {};
  const bool filters = !launch.include.empty() || !launch.exclude.empty();
  if (launch.hostfile.empty() && filters) OFSDP_RETURN_IF_ERROR(filter_here(launch));
  if (launch.hostfile.empty()) return {};
  OFSDP_RETURN_IF_ERROR(read_hosts(launch));
  launch.nnodes = std::ssize(launch.hosts);
  if (launch.no_ssh) return take_own_host(launch);
  launch.nproc_per_node = std::ssize(launch.hosts[0].slots);
  const bool several = launch.nnodes > 1 || !is_here(launch.hosts[0].name);
  if (several && launch.rdzv_endpoint.empty() && launch.master_addr.empty()) {
    launch.master_addr = launch.hosts[0].name;
  }
  return {};
}

// Like torchrun, takes this host and a free port, whatever other options say.
Status resolve_standalone(LaunchOptions& launch, OptionReader& reader) {
  if (!launch.standalone) return {};
  OFSDP_REJECT_IF(launch.nnodes > 1, "--standalone contradicts {}: expected one host, found {}",
                  launch.hostfile.empty() ? "--nnodes" : "--hostfile", launch.nnodes);
  for (const char* name : {"rdzv-endpoint", "rdzv-id"}) {
    const std::string said = reader.find_subject(name);
    if (!said.empty()) reader.warn(said + " has no effect with --standalone");
  }
  launch.rdzv_endpoint.clear();
  launch.rdzv_id.clear();
  return {};
}

// Without a hostfile, DeepSpeed's --num_nodes means this host.
void stay_here(LaunchOptions& launch, OptionReader& reader) {
  const bool nowhere = launch.rdzv_endpoint.empty() && launch.master_addr.empty();
  if (reader.find_subject("nnodes") != "--num_nodes" || !launch.hostfile.empty() || !nowhere)
    return;
  if (launch.nnodes > 1)
    reader.warn("--num_nodes has no effect without --hostfile: this host alone");
  launch.nnodes = 1;
}

}  // namespace

Result<std::vector<HostSlots>> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  OFSDP_REJECT_IF(!file, "--hostfile {}: cannot read the file: {}", path, std::strerror(errno));
  std::vector<HostSlots> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
    const std::string at = format_text("{} line {}", path, number);
    OFSDP_ASSIGN_OR_RETURN(HostSlots host, read_line(line, at));
    OFSDP_REJECT_IF(std::ranges::count(hosts, host.name, &HostSlots::name) > 0,
                    "{}: the host {} stands here twice", at, host.name);
    hosts.push_back(std::move(host));
  }
  OFSDP_REJECT_IF(hosts.empty(), "--hostfile {}: expected lines of HOST slots=N, found none", path);
  return hosts;
}

Result<std::vector<HostSlots>> filtered_hosts(std::vector<HostSlots> hosts,
                                              const std::string& include,
                                              const std::string& exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  OFSDP_REJECT_IF(!include.empty() && !exclude.empty(), "--include contradicts --exclude");
  const bool keeps = !include.empty();
  const std::string flag = keeps ? "--include" : "--exclude";
  OFSDP_ASSIGN_OR_RETURN(const auto chosen, parse_filter(flag, keeps ? include : exclude));
  std::vector<HostSlots> left = hosts;
  for (HostSlots& host : left) {
    if (keeps) host.slots.clear();
  }
  for (const HostSlots& host : chosen) {
    OFSDP_RETURN_IF_ERROR(apply(host, keeps, flag, hosts, left));
  }
  for (size_t i = 0; i < left.size(); ++i) left[i].some = left[i].slots != hosts[i].slots;
  std::erase_if(left, [](const HostSlots& host) { return host.slots.empty(); });
  OFSDP_REJECT_IF(left.empty(), "{}: leaves no slot of any host", flag);
  return left;
}

Status resolve_meeting(LaunchOptions& launch, OptionReader& reader) {
  stay_here(launch, reader);
  OFSDP_RETURN_IF_ERROR(resolve_hosts(launch));
  OFSDP_RETURN_IF_ERROR(resolve_standalone(launch, reader));
  if (launch.nnodes == 1 && launch.rdzv_endpoint.ends_with(":0")) launch.rdzv_endpoint.clear();
  const bool meets = launch.nnodes > 1 || starts_hosts(launch);
  for (const auto& [name, given] : {std::pair("master-addr", !launch.master_addr.empty()),
                                    std::pair("master-port", launch.master_port.has_value())}) {
    const char* const why = !meets                         ? "on one host"
                            : launch.rdzv_endpoint.empty() ? nullptr
                                                           : "with --rdzv-endpoint";
    const std::string said = reader.find_subject(name);
    if (given && !said.empty() && why != nullptr) reader.warn(said + " has no effect " + why);
  }
  if (!meets || !launch.rdzv_endpoint.empty() || launch.master_addr.empty()) return {};
  const bool ipv6 =
      launch.master_addr.find(':') != std::string::npos && !launch.master_addr.starts_with('[');
  launch.rdzv_endpoint =
      format_text("{}:{}", ipv6 ? "[" + launch.master_addr + "]" : launch.master_addr,
                  launch.master_port.value_or(kMasterPort));
  return {};
}

bool starts_hosts(const LaunchOptions& launch) {
  if (launch.hostfile.empty() || launch.hosts.empty() || launch.no_ssh) return false;
  return launch.hosts.size() > 1 || !is_here(launch.hosts[0].name);
}

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

// Words for one host come last, so that they count, but before a `--`.
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
      setpgid(0, 0);  // Ctrl-C on a terminal must reach us alone; we pass it on
      dup2(reads.get(), STDIN_FILENO);
      signals.restore();
      execvp(words[0], words.data());
      _exit(kNoProgram);
    }
    const std::string line = secret + "\n";
    const bool told = write(tie_.get(), line.data(), line.size()) == std::ssize(line);
    return told ? Status() : fault("{}: cannot write to {}", name_, command_[0]);
  }

  // Checks whether it has ended; returns true if it still runs.
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
      const SignalQueue::Heard heard = signals.wait(-1, kLookAtHosts);
      if (!heard.interrupts()) continue;
      if (interrupted_by_ != 0) end_all();
      interrupted_by_ = heard.number;
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

  // The same holds if a launcher fails before it joins. If one fails later, all end by themselves
  // sooner.
  bool too_few_for_long() {
    const auto failed = [](const RemoteHost& host) { return has_failed(host.status()); };
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
    // The hosts' launchers got SIGTERM, whatever signal this process got.
    const bool stopped = stopped_by(status) != 0 && interrupted_by_ != 0;
    return stopped ? stopped_status(interrupted_by_) : status;
  }

  const LaunchOptions& launch_;
  std::vector<RemoteHost> hosts_;
  int interrupted_by_ = 0;  // the last signal; 0: none
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
  // Descriptor 3 is standard input, since a shell closes standard input for background commands.
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
