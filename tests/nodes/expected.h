// The table of node tests that do not pass, with reasons: lines "PATTERN REASON"; a pattern is a
// name with * for any characters. '#' begins a comment.
//
// Errors: kInput naming file and line.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

struct ExpectedFailure {
  int line;
  std::string pattern;
  std::string reason;
  int64_t matches = 0;  // counted by find
};

class ExpectedFailures {
 public:
  static Result<ExpectedFailures> read(const std::string& path);

  ExpectedFailure* find(const std::string& test);  // null: must pass
  const std::vector<ExpectedFailure>& all() const { return list_; }

 private:
  std::vector<ExpectedFailure> list_;
};

}  // namespace ofsdp::nodes
