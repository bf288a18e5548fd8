#include "tests/nodes/expected.h"

#include <fnmatch.h>

#include <fstream>

#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

Result<ExpectedFailures> ExpectedFailures::read(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) return input_error("{}: cannot be read", path);
  ExpectedFailures failures;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    const size_t reason = line.find_first_not_of(' ', space);
    if (space == std::string::npos || reason == std::string::npos) {
      return input_error("{}:{}: expected a test and a reason, found '{}'", path, number, line);
    }
    failures.list_.push_back({number, line.substr(0, space), line.substr(reason), 0});
  }
  return failures;
}

ExpectedFailure* ExpectedFailures::find(const std::string& test) {
  for (ExpectedFailure& failure : list_) {
    if (fnmatch(failure.pattern.c_str(), test.c_str(), 0) != 0) continue;
    ++failure.matches;
    return &failure;
  }
  return nullptr;
}

}  // namespace ofsdp::nodes
