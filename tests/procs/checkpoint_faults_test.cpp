// A disk that fails at every call of a save in turn (tests/preload/fail_disk_calls.cpp). The run
// ends with the reason or goes on, keeps all whole checkpoints, and leaves no partial one under a
// checkpoint's name. Tries some calls; with OFSDP_ALL_DISK_FAULTS, each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace checkpoint_faults_test {

namespace fs = std::filesystem;

constexpr int kWorld = 2;
constexpr long kStride = 13;  // calls between two failures; OFSDP_ALL_DISK_FAULTS: every call

Words run_of(int steps, const std::string& type) {
  return checkpointed_model() + ranks(kWorld) +
         Words{"--batch-size",
               "7",
               "--checkpoint-interval",
               "1step",
               "--keep-checkpoints",
               "1",
               "--checkpoint-type",
               type,
               "--timeout",
               "20",
               "--steps",
               std::to_string(steps)};
}

Start failing(const CheckpointRuns& runs, int rank, long call, const std::string& how) {
  return {.environment = {"LD_PRELOAD=" OFSDP_FAIL_DISK_CALLS, "FAIL_FOLDER=" + runs.dir(),
                          format_text("FAIL_RANK={}", rank), format_text("FAIL_CALL={}", call),
                          "FAIL_HOW=" + how, "FAIL_COUNT=" + runs / "counts"}};
}

// Every folder with a checkpoint's name is whole.
void expect_whole(const CheckpointRuns& runs) {
  int complete = 0;
  for (const std::string& name : runs.checkpoints()) {
    if (!name.starts_with("step-")) continue;
    auto reader = CheckpointReader::open(runs.dir() + "/" + name);
    ASSERT_TRUE(reader.ok()) << name << ": " << reader.error().message();
    const Status verified = reader->verify(0, 1);
    EXPECT_TRUE(verified.ok()) << verified.message();
    ++complete;
  }
  EXPECT_GE(complete, 1) << "the last good one was lost";
}

using Case = std::tuple<std::string, std::string, int>;  // how, type, rank

class DiskFaultTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, DiskFaultTest,
                         testing::Combine(testing::Values("once", "on", "short"),
                                          testing::Values("sharded", "full"),
                                          testing::Values(0, 1)),
                         [](const auto& info) {
                           return format_text("{}_{}_rank{}", std::get<0>(info.param),
                                              std::get<1>(info.param), std::get<2>(info.param));
                         });

long calls_of(const CheckpointRuns& runs, int rank) {
  std::ifstream file(runs / "counts");
  long found = -1;
  int of = 0;
  for (long count = 0; file >> of >> count;) {
    if (of == rank) found = count;
  }
  return found;
}

TEST_P(DiskFaultTest, AtEveryCall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers want to be loaded first";
#endif
  const auto [how, type, rank] = GetParam();
  const CheckpointRuns runs;
  const std::string expected = runs.trained(run_of(3, type));
  fs::create_directories(runs.dir());
  runs.trained(run_of(1, type) + runs.saving());
  fs::rename(runs.dir(), runs / "base");
  const bool all = std::getenv("OFSDP_ALL_DISK_FAULTS") != nullptr;
  const long stride = all ? 1 : kStride;
  // Each case begins with another call.
  const long first =
      1 + static_cast<long>(how.size() + 3 * type.size() + 5 * static_cast<size_t>(rank)) % stride;
  long calls = first;
  for (long call = 0; call <= calls; call = call == 0 ? first : call + stride) {
    SCOPED_TRACE(format_text("call {} of {}", call, calls));
    fs::remove_all(runs.dir());
    fs::copy(runs / "base", runs.dir(), fs::copy_options::recursive);
    const Finished run =
        Program::run(run_of(3, type) + runs.resuming(), failing(runs, rank, call, how));
    if (call == 0) calls = calls_of(runs, rank);
    ASSERT_GE(calls, 8) << "saves make calls";
    if (call == 0 || how == "short") {
      EXPECT_EQ(run.status, 0) << run.err;
    }
    if (run.status != 0) {
      EXPECT_LE(run.status, 2);
      EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
      EXPECT_THAT(run.err, testing::HasSubstr(runs.dir()));
    }
    expect_whole(runs);
    EXPECT_TRUE(runs.trained(run_of(3, type) + runs.resuming()) == expected);
    EXPECT_THAT(runs.last().out, testing::HasSubstr("resuming from"));
    EXPECT_EQ(runs.last().err, "");
    if (HasFailure()) return;
  }
}

}  // namespace checkpoint_faults_test
}  // namespace ofsdp
