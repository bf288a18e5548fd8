// Cgroup: the limits that a container or a batch system sets for this process, by cgroup v2 and v1:
// memory, CPU time, and how often the kernel has killed for lack of memory. A limit of a parent
// group counts as the group's own.
//
// Each call reads the files anew. A file that is missing or not understood is no limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

class Cgroup {
 public:
  // `root`: the folder that has /proc and /sys, for tests.
  explicit Cgroup(std::string root = "");

  // Returns bytes, with the swap that the group may use; nothing: no limit.
  std::optional<int64_t> memory_limit() const;
  // Returns cores' worth of time, such as 1.5; nothing: no quota.
  std::optional<double> cores() const;
  // Returns the number of processes of the group that the kernel has killed for lack of memory.
  int64_t oom_kills() const;

 private:
  using Folders = std::vector<std::string>;  // the own group's, then its parents'
  Folders folders(const std::string& controller) const;
  std::optional<int64_t> number(const std::string& path) const;

  std::string root_;
  Folders unified_;       // v2
  Folders memory_, cpu_;  // v1
};

// The memory of this machine that this process may use.
struct MachineMemory {
  int64_t bytes = INT64_MAX;  // physical and swap, or the cgroup's limit where that is less
  bool cgroup = false;        // it is the cgroup's limit
};
MachineMemory machine_memory(const std::string& root = "");

}  // namespace ofsdp::base
