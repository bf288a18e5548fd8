// node_runner: ONNX's backend node tests against the importer and the kernels.
//
//   node_runner [--expected TABLE] [--gradients] FOLDER...
//
// Each folder is a test (it holds model.onnx) or a folder of tests. One line for each failing test,
// then the counts. Without a table the exit status is 1 when any fails; with one (see
// expected.h) when a listed test passes, another fails, or a line of the table matches nothing.
// With --gradients it also compares gradients with differences, for tests that pass (gradients.h).
// It prints a line for each wrong gradient, and counts, which do not change the status.
//
// The tests run in a separate process, which is started again when one crashes: that test
// fails.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "importer/proto/onnx_protos.h"
#include "tests/nodes/compare.h"
#include "tests/nodes/draws.h"
#include "tests/nodes/expected.h"
#include "tests/nodes/gradients.h"
#include "tests/nodes/run_model.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {
namespace {

namespace fs = std::filesystem;

Status compare_all(const std::vector<Constant>& found,
                   const std::vector<onnx::TensorProto>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const ConstantPtr wanted, constant_from_onnx(expected[i]));
    OFSDP_RETURN_IF_ERROR(
        compare(found[i], *wanted).with_prefix(format_text("output '{}'", expected[i].name())));
  }
  return {};
}

// If planning fails with all inputs as data, the inputs that operators need become constants, then
// all inputs.
Status run_data_set(const NodeTest& test, const DataSet& data, const Registry& registry,
                    const Visit& visit) {
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
    auto found = run_model(bound, registry, attempt.known, planned, visit);
    if (found.ok()) {
      auto drawn = compare_draws(test, data, *found);
      return drawn ? *std::move(drawn) : compare_all(*found, bound.outputs);
    }
    status = std::move(found).status();
    if (planned) break;
  }
  return status;
}

Status run_test(const std::string& folder, const Registry& registry, const Visit& visit) {
  OFSDP_ASSIGN_OR_RETURN(const NodeTest test, read_node_test(folder));
  for (const DataSet& data : test.data_sets) {
    OFSDP_RETURN_IF_ERROR(run_data_set(test, data, registry, visit));
  }
  return {};
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

constexpr char kReply = '\x01';  // starts the line with a test's outcome
constexpr char kRest = '\x02';   // in that line, between the gradient's verdict and the failure

// A test's outcome. `failure` is empty if it passes; `why` comes from check_gradients.
struct Outcome {
  std::string failure, why;
  GradientVerdict gradient = GradientVerdict::kNothing;
};

// Runs tests in order, all in one process until one crashes, then in another.
class Runner {
 public:
  Runner(const std::vector<std::string>& tests, const Registry& registry, bool gradients)
      : tests_(tests), registry_(registry), gradients_(gradients) {}

  // Returns the next test's outcome.
  Outcome next() {
    if (replies_ == nullptr) start();
    ++next_;
    std::string said;
    const bool replied = read_reply(said);
    const std::string end = replied && next_ < tests_.size() ? "" : finish();
    return replied ? parsed(said) : Outcome{end + said.substr(0, 4096), "", {}};
  }

 private:
  void start() {
    int ends[2];
    OFSDP_CHECK(pipe(ends) == 0, "no pipe");
    child_ = fork();
    if (child_ == 0) {
      ::close(ends[0]);
      run_rest(ends[1]);
    }
    ::close(ends[1]);
    replies_ = fdopen(ends[0], "r");
  }

  // False: the process crashed. `said`: the failure, else the process's text on stderr.
  bool read_reply(std::string& said) {
    char* line = nullptr;
    size_t size = 0;
    bool replied = false;
    while (!replied && getline(&line, &size, replies_) > 0) {
      replied = line[0] == kReply;
      said = replied ? std::string(line + 1, strcspn(line + 1, "\n")) : said + line;
    }
    std::free(line);
    said = one_line(said);
    return replied;
  }

  static Outcome parsed(const std::string& reply) {
    const size_t rest = reply.find(kRest);
    return {reply.substr(rest + 1), reply.substr(1, rest - 1),
            static_cast<GradientVerdict>(reply[0] - '0')};
  }

  [[noreturn]] void run_rest(int replies) {
    dup2(replies, STDERR_FILENO);
    for (size_t i = next_; i < tests_.size(); ++i) {
      Outcome outcome;
      const Visit visit = [&](const Graph& graph, Interpreter& values) {
        outcome.gradient = check_gradients(graph, values, outcome.why);
      };
      const Status status = run_test(tests_[i], registry_, gradients_ ? visit : Visit());
      fmt::print(stderr, "\n{}{}{}{}{}\n", kReply, static_cast<int>(outcome.gradient),
                 one_line(outcome.why), kRest, status.ok() ? "" : one_line(status.message()));
    }
    _exit(0);
  }

  // How the process ended.
  std::string finish() {
    std::fclose(std::exchange(replies_, nullptr));
    int state = 0;
    waitpid(child_, &state, 0);
    return WIFSIGNALED(state) ? format_text("ended by signal {}: ", WTERMSIG(state))
                              : format_text("ended with status {}: ", WEXITSTATUS(state));
  }

  const std::vector<std::string>& tests_;
  const Registry& registry_;
  bool gradients_;
  size_t next_ = 0;
  pid_t child_ = 0;
  FILE* replies_ = nullptr;
};

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
  std::array<int, 4> gradients{};  // by verdict, for tests that pass
};

void count(const std::string& folder, const Outcome& outcome, ExpectedFailures* expected,
           Counts& counts) {
  const std::string name = fs::path(folder).filename().string();
  const std::string& failure = outcome.failure;
  if (failure.empty()) ++counts.gradients[static_cast<size_t>(outcome.gradient)];
  if (failure.empty() && !outcome.why.empty()) fmt::print("GRADIENT {}: {}\n", name, outcome.why);
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

void print_gradients(const Counts& counts) {
  const auto [nothing, agree, without, differ] = counts.gradients;
  fmt::print(
      "gradients: {} of {} tests with floating inputs and outputs agree with central "
      "differences, {} have none, {} differ\n",
      agree, agree + without + differ, without, differ);
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
  const bool gradients = !arguments.empty() && arguments[0] == "--gradients";
  if (gradients) arguments.erase(arguments.begin());
  const auto tests = tests_below(arguments);
  if (tests.empty()) {
    fmt::print(stderr, "usage: node_runner [--expected TABLE] [--gradients] FOLDER...\n");
    return 2;
  }
  Counts counts;
  const Registry registry = make_registry();
  Runner runner(tests, registry, gradients);
  for (const std::string& test : tests) {
    count(test, runner.next(), expected ? &*expected : nullptr, counts);
  }
  for (const ExpectedFailure& line : expected ? expected->all() : std::vector<ExpectedFailure>{}) {
    if (line.matches > 0) continue;
    ++counts.surprising;
    fmt::print("UNUSED line {} of the table: no test is named {}\n", line.line, line.pattern);
  }
  fmt::print("{} of {} node tests pass, {} fail", counts.passed, tests.size(), counts.failed);
  if (expected) fmt::print(", {} of all are not as listed", counts.surprising);
  fmt::print("\n");
  if (gradients) print_gradients(counts);
  return counts.surprising == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ofsdp::nodes

int main(int argc, char** argv) { return ofsdp::nodes::main({argv + 1, argv + argc}); }
