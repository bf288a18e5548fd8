#include "kernels/base/process.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>

namespace ofsdp::base {

namespace {

constexpr int64_t kNoLimit = int64_t{1} << 60;  // v1 writes the largest page multiple

// "a,b,c" lists "b".
bool lists(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Returns this process's group in the hierarchy of `controller` ("": v2).
std::optional<std::string> group_of(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? line.substr(0, first) == "0" : lists(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

struct Mount {
  std::string group;  // visible at `folder`
  std::string folder;
};

std::optional<Mount> mount_of(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, type, source, options;
    Mount mount;
    words >> skipped >> skipped >> skipped >> mount.group >> mount.folder;
    while (words >> skipped && skipped != "-") {
    }
    words >> type >> source >> options;
    const bool found =
        controller.empty() ? type == "cgroup2" : type == "cgroup" && lists(options, controller);
    if (found) return mount;
  }
  return std::nullopt;
}

// Returns the path of `group` below the mount. A container may see its own group as the mount,
// while /proc/self/cgroup names the group from the host's root.
std::string below(const Mount& mount, const std::string& group) {
  if (group.find("/..") != std::string::npos || group == "/") return "";
  if (mount.group == "/") return group;
  return group.starts_with(mount.group + "/") ? group.substr(mount.group.size()) : "";
}

std::optional<int64_t> least(std::optional<int64_t> a, std::optional<int64_t> b) {
  return !a ? b : !b ? a : std::min(*a, *b);
}

// Returns the number after `key` in a file with "key number" lines.
std::optional<int64_t> after_key(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

int64_t swap_bytes(const std::string& root) {
  return after_key(root + "/proc/meminfo", "SwapTotal:").value_or(0) * 1024;
}

}  // namespace

Cgroup::Cgroup(std::string root)
    : root_(std::move(root)),
      unified_(folders("")),
      memory_(folders("memory")),
      cpu_(folders("cpu")) {}

Cgroup::Folders Cgroup::folders(const std::string& controller) const {
  const auto group = group_of(root_, controller);
  const auto mount = mount_of(root_, controller);
  if (!group || !mount) return {};
  Folders all;
  std::string rest = below(*mount, *group);
  for (; !rest.empty(); rest.resize(rest.rfind('/'))) all.push_back(root_ + mount->folder + rest);
  all.push_back(root_ + mount->folder);
  return all;
}

// Returns none if the file says "max", -1 or no number.
std::optional<int64_t> Cgroup::number(const std::string& path) const {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value) || value < 0 || value >= kNoLimit) return std::nullopt;
  return value;
}

std::optional<int64_t> Cgroup::memory_limit() const {
  const int64_t swap = swap_bytes(root_);
  std::optional<int64_t> limit;
  for (const std::string& folder : unified_) {
    auto own = least(number(folder + "/memory.max"), number(folder + "/memory.high"));
    if (own) *own += std::min(swap, number(folder + "/memory.swap.max").value_or(swap));
    limit = least(limit, own);
  }
  for (const std::string& folder : memory_) {
    auto own = number(folder + "/memory.limit_in_bytes");
    if (own) *own += swap;
    limit = least(limit, least(own, number(folder + "/memory.memsw.limit_in_bytes")));
  }
  return limit;
}

std::optional<double> Cgroup::cores() const {
  std::optional<double> least_cores;
  const auto note = [&](int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0) return;
    const double own = static_cast<double>(quota) / static_cast<double>(period);
    least_cores = std::min(least_cores.value_or(own), own);
  };
  for (const std::string& folder : unified_) {
    std::ifstream file(folder + "/cpu.max");
    int64_t quota = 0, period = 0;
    if (file >> quota >> period) note(quota, period);
  }
  for (const std::string& folder : cpu_) {
    note(number(folder + "/cpu.cfs_quota_us").value_or(0),
         number(folder + "/cpu.cfs_period_us").value_or(0));
  }
  return least_cores;
}

int64_t Cgroup::oom_kills() const {
  int64_t kills = 0;
  if (!unified_.empty()) kills += after_key(unified_[0] + "/memory.events", "oom_kill").value_or(0);
  if (!memory_.empty()) {
    kills += after_key(memory_[0] + "/memory.oom_control", "oom_kill").value_or(0);
  }
  return kills;
}

MachineMemory machine_memory(const std::string& root) {
  MachineMemory memory;
  if (const auto physical = after_key(root + "/proc/meminfo", "MemTotal:")) {
    memory.bytes = *physical * 1024 + swap_bytes(root);
  }
  const auto limit = Cgroup(root).memory_limit();
  if (limit && *limit < memory.bytes) memory = {*limit, true};
  return memory;
}

std::filesystem::path own_folder() {
  const auto* const here = reinterpret_cast<const void*>(&own_folder);
  Dl_info found{};
  link_map* map = nullptr;
  std::error_code error;
  const bool known =
      dladdr1(here, &found, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 && map != nullptr;
  // The main program has no name there.
  const bool in_library = known && map->l_name != nullptr && *map->l_name != 0;
  const auto file = in_library ? std::filesystem::canonical(map->l_name, error)
                               : std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : file.parent_path();
}

std::array<std::string, 3> own_library_paths(const std::string& name) {
  const std::filesystem::path folder = own_folder();
  return {folder / name, folder.parent_path() / name, name};
}

std::string own_program() {
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code error;
  const auto path = std::filesystem::read_symlink(kSelf, error);
  return error || access(path.c_str(), X_OK) != 0 ? kSelf : path.string();
}

}  // namespace ofsdp::base
