#include "runtime/cli/launch/hostfile.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_name.h"
#include "kernels/base/reject.h"
#include "kernels/core/device.h"

namespace ofsdp::cli {
namespace {

constexpr int64_t kMostSlots = 4096;
constexpr int64_t kMasterPort = 29500;  // torchrun's and DeepSpeed's

std::vector<int64_t> first_slots(int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  return slots;
}

// Letters, digits and what addresses and names have besides: nothing that a shell or ssh reads as
// something else.
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
  OFSDP_REJECT_IF(!is_host(name) || !count || *count > kMostSlots || !rest,
                  "{}: expected HOST slots=N with N from 1 to {}, found '{}'", at, kMostSlots,
                  line);
  return HostSlots{name, first_slots(*count)};
}

// One filter as hosts; no slots stands for all of them.
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

// Filters without a hostfile are of this host, whose slots are its GPUs.
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
  const auto most = static_cast<size_t>(launch.most_hosts.value_or(kMostRanks));
  if (hosts.size() > most) hosts.resize(most);
  for (HostSlots& host : hosts) {
    const auto slots = static_cast<size_t>(launch.most_slots.value_or(kMostSlots));
    host.some = host.some || host.slots.size() > slots;
    if (host.slots.size() > slots) host.slots.resize(slots);
  }
  launch.hosts = std::move(hosts);
  OFSDP_REJECT_IF(asked_ranks(launch) > kMostRanks, "--hostfile {}: expected at most {} slots",
                  launch.hostfile, kMostRanks);
  return {};
}

// --no-ssh: this process is the launcher of one of the hosts.
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
  if (std::getenv("OFSDP_RENDEZVOUS") != nullptr) return {};  // the launcher of this rank has
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

// torchrun takes this host and a free port, whatever else was said.
Status resolve_standalone(LaunchOptions& launch, OptionReader& reader) {
  if (!launch.standalone) return {};
  OFSDP_REJECT_IF(launch.nnodes > 1, "--standalone contradicts {}: expected one host, found {}",
                  launch.hostfile.empty() ? "--nnodes" : "--hostfile", launch.nnodes);
  for (const char* name : {"rdzv-endpoint", "rdzv-id"}) {
    const std::string said = reader.subject_of(name);
    if (!said.empty()) reader.warn(said + " has no effect with --standalone");
  }
  launch.rdzv_endpoint.clear();
  launch.rdzv_id.clear();
  return {};
}

// DeepSpeed's --num_nodes without a hostfile is what this host has.
void stay_here(LaunchOptions& launch, OptionReader& reader) {
  const bool nowhere = launch.rdzv_endpoint.empty() && launch.master_addr.empty();
  if (reader.subject_of("nnodes") != "--num_nodes" || !launch.hostfile.empty() || !nowhere) return;
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
    const std::string said = reader.subject_of(name);
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

}  // namespace ofsdp::cli
