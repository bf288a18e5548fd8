// The environment of one rank: the launcher's, with torchrun's variables and ours on top
// (docs/launch.md lists them).
//
// Ownership: owns its texts; `get` is a view. Threads: any, while nobody changes the environment.
// Errors: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/launch/assignment.h"

namespace ofsdp::cli {

class RankEnvironment {
 public:
  // `cores`: of each rank, 0 when they share all. `failure_fd`: where it says why it failed, -1: to
  // stderr.
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

}  // namespace ofsdp::cli
