// This process: limits that a container or batch system sets, the folder it lies in, random bits.
//
// Cgroup reads memory and CPU limits and out-of-memory kills, for cgroup v2 and v1; a parent
// group's limit counts too. Each call reads the files anew; a missing or unreadable file means no
// limit.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

class Cgroup {
 public:
  // `root`: folder with /proc and /sys, for tests.
  explicit Cgroup(std::string root = "");

  // Returns bytes, with the swap that the group may use; none: no limit.
  std::optional<int64_t> memory_limit() const;
  // Returns cores, such as 1.5; none: no quota.
  std::optional<double> cores() const;
  // Returns how many processes in the group the kernel has killed for lack of memory.
  int64_t oom_kills() const;

 private:
  using Folders = std::vector<std::string>;  // own group first, then its parents
  Folders folders(const std::string& controller) const;
  std::optional<int64_t> number(const std::string& path) const;

  std::string root_;
  Folders unified_;       // v2
  Folders memory_, cpu_;  // v1
};

// Memory that this process may use.
struct MachineMemory {
  int64_t bytes = INT64_MAX;  // physical and swap, or the cgroup's limit if less
  bool cgroup = false;        // `bytes` is the cgroup's limit
};
MachineMemory machine_memory(const std::string& root = "");

// Returns the folder with the program or library that contains this code (fsdp-run, a test,
// libonnx_fsdp.so), wherever it was copied; empty if the system does not say. Libraries loaded at
// run time and the program that runs ranks lie near it.
std::filesystem::path own_folder();

// Returns where to look for our library `name`, in this order: next to this code, in the folder
// above (for tests), and by name alone, where the loader looks. No further up: others may write to
// a folder like /tmp.
std::array<std::string, 3> own_library_paths(const std::string& name);

// Returns the running program's path, to start it again: a real name, which process lists show, or
// /proc/self/exe if the file has been replaced.
std::string own_program();

// Returns 64 random bits from the system, for names and tokens that no two processes may share.
inline uint64_t random_word() {
  uint64_t word = 0;
  [[maybe_unused]] const ssize_t got = getrandom(&word, sizeof word, 0);
  return word;
}

}  // namespace ofsdp::base
