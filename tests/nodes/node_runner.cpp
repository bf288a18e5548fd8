// node_runner: ONNX's backend node tests against the importer and the kernels.
//
//   node_runner [--expected TABLE] FOLDER...
//
// Each folder is a test (it holds model.onnx) or a folder of tests. One line for each test that
// fails, then the counts. Without a table the exit status is 1 when any fails; with one (see
// expected.h) when a listed test passes, another fails, or a line of the table matches nothing.
//
// Every test runs in a process of its own, so one that crashes is one that fails.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "importer/onnx_tensor.h"
#include "tests/nodes/compare.h"
#include "tests/nodes/expected.h"
#include "tests/nodes/run_model.h"

namespace ofsdp::nodes {
namespace {

namespace fs = std::filesystem;

Status compare_all(const std::vector<Constant>& found,
                   const std::vector<onnx::TensorProto>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const ConstantPtr wanted, constant_from_onnx(expected[i]));
    OFSDP_RETURN_IF_ERROR(
        compare(found[i], *wanted).with_prefix(fmt::format("output '{}'", expected[i].name())));
  }
  return {};
}

// What cannot be planned with data is planned with what operators need as constants, then with
// nothing but constants.
Status run_data_set(const NodeTest& test, const DataSet& data, const Registry& registry) {
  struct Attempt {
    bool constants;
    Known known;
  };
  constexpr Attempt kAttempts[] = {
      {false, Known::kInputs}, {false, Known::kNeeded}, {true, Known::kInputs}};
  Status status;
  for (const Attempt& attempt : kAttempts) {
    bool planned = false;
    const BoundModel bound = bind_model(test, data, attempt.constants);
    auto found = run_model(bound, registry, attempt.known, planned);
    if (found.ok()) return compare_all(*found, bound.outputs);
    status = std::move(found).status();
    if (planned) break;
  }
  return status;
}

Status run_test(const std::string& folder, const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const NodeTest test, read_node_test(folder));
  for (const DataSet& data : test.data_sets) {
    OFSDP_RETURN_IF_ERROR(run_data_set(test, data, registry));
  }
  return {};
}

// Empty: it passes.
std::string failure_in_child(const std::string& folder, const Registry& registry) {
  int ends[2];
  OFSDP_CHECK(pipe(ends) == 0, "no pipe");
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);  // also what a failed check says
    const Status status = run_test(folder, registry);
    std::string text = status.ok() ? "" : status.message();
    std::ranges::replace(text, '\n', ' ');
    if (!text.empty()) (void)!write(ends[1], text.data(), text.size());
    _exit(status.ok() ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  size_t size = 0;
  for (ssize_t n = 0; size < text.size(); size += static_cast<size_t>(n)) {
    n = read(ends[0], text.data() + size, text.size() - size);
    if (n <= 0) break;
  }
  close(ends[0]);
  text.resize(size);
  std::ranges::replace(text, '\n', ' ');
  int state = 0;
  waitpid(child, &state, 0);
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return "";
  return WIFSIGNALED(state) ? fmt::format("ended by signal {}: {}", WTERMSIG(state), text) : text;
}

std::vector<std::string> tests_below(const std::vector<std::string>& folders) {
  std::vector<std::string> tests;
  for (const std::string& folder : folders) {
    if (fs::exists(fs::path(folder) / "model.onnx")) {
      tests.push_back(folder);
      continue;
    }
    if (!fs::is_directory(folder)) continue;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (fs::exists(entry.path() / "model.onnx")) tests.push_back(entry.path().string());
    }
  }
  std::ranges::sort(tests);
  return tests;
}

struct Counts {
  int passed = 0, failed = 0, surprising = 0;
};

void count(const std::string& folder, const Registry& registry, ExpectedFailures* expected,
           Counts& counts) {
  const std::string name = fs::path(folder).filename().string();
  const std::string failure = failure_in_child(folder, registry);
  const ExpectedFailure* listed = expected == nullptr ? nullptr : expected->find(name);
  ++(failure.empty() ? counts.passed : counts.failed);
  if (failure.empty() == (listed == nullptr)) return;
  ++counts.surprising;
  if (failure.empty()) {
    fmt::print("PASSES {}: take it from line {} of the table ({})\n", name, listed->line,
               listed->reason);
  } else {
    fmt::print("FAILED {}: {}\n", name, failure);
  }
  std::fflush(stdout);
}

int main(std::vector<std::string> arguments) {
  std::optional<ExpectedFailures> expected;
  if (arguments.size() >= 2 && arguments[0] == "--expected") {
    auto table = ExpectedFailures::read(arguments[1]);
    if (!table.ok()) {
      fmt::print(stderr, "node_runner: {}\n", table.error().message());
      return 2;
    }
    expected = *std::move(table);
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  const auto tests = tests_below(arguments);
  if (tests.empty()) {
    fmt::print(stderr, "usage: node_runner [--expected TABLE] FOLDER...\n");
    return 2;
  }
  Counts counts;
  const Registry registry = make_registry();
  for (const std::string& test : tests) {
    count(test, registry, expected ? &*expected : nullptr, counts);
  }
  for (const ExpectedFailure& line : expected ? expected->all() : std::vector<ExpectedFailure>{}) {
    if (line.matches > 0) continue;
    ++counts.surprising;
    fmt::print("UNUSED line {} of the table: no test is named {}\n", line.line, line.pattern);
  }
  fmt::print("{} of {} node tests pass, {} fail", counts.passed, tests.size(), counts.failed);
  if (expected) fmt::print(", {} of all are not as listed", counts.surprising);
  fmt::print("\n");
  return counts.surprising == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ofsdp::nodes

int main(int argc, char** argv) { return ofsdp::nodes::main({argv + 1, argv + argc}); }
