// No thread that runs the schedule asks for memory once every planned shape has been run: the count
// of a whole process, taken by a preloaded library (tests/preload), does not depend on the number
// of epochs.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace {

constexpr double kRace = 8;

// Calls of each process's main thread, by rank ("launcher" is the parent).
std::map<std::string, long> counted(const Words& command) {
  const testing_data::TempFolder folder;
  const std::string file = folder.path() + "/counts";
  Start start;
  start.environment = {"LD_PRELOAD=" OFSDP_COUNT_ALLOCATIONS, "COUNT_ALLOCATIONS=" + file};
  const Finished run = Program::run(command, start);
  EXPECT_EQ(run.status, 0) << run.err;
  std::map<std::string, long> counts;
  std::ifstream lines(file);
  std::string rank;
  long count = 0;
  while (lines >> rank >> count) counts[rank] = count;
  return counts;
}

// Batches of 5 a rank leave a short last one of the 192 samples; evaluation every epoch is short at
// its end too.
Words run_of(int epochs, int world, const Words& more, const Words& model) {
  const std::string data = fixture("mlp/data");
  return model + ranks(world) + more +
         Words{"--batch-size", "5", "--epochs", std::to_string(epochs), "--eval-data", data};
}

void expect_same_counts(int world, const Words& more, const Words& model = mlp()) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers bring their own malloc";
#endif
  const auto two = counted(run_of(2, world, more, model));
  const auto sixty = counted(run_of(60, world, more, model));
  for (int rank = 0; world > 1 && rank < world; ++rank) {
    const std::string name = std::to_string(rank);
    ASSERT_TRUE(two.contains(name) && sixty.contains(name)) << name;
    EXPECT_GT(two.at(name), 1000) << "planning allocates; a count of nothing counts nothing";
    EXPECT_NEAR(two.at(name), sixty.at(name), kRace) << "rank " << name;
  }
  if (world == 1) {
    EXPECT_NEAR(two.at("launcher"), sixty.at("launcher"), kRace);
  }
}

TEST(Allocation, NoneInTheLoopOnOneRank) { expect_same_counts(1, {}); }

TEST(Allocation, NoneInTheLoopOnTwoRanksFullyShardedInSmallUnits) {
  expect_same_counts(2, {"--strategy", "full_shard", "--min-params", "1000"});
}

TEST(Allocation, NoneInTheLoopWithAccumulationAndClipping) {
  expect_same_counts(2, {"--strategy", "no_shard", "--grad-accum", "2", "--clip-grad-norm", "0.5"});
}

TEST(Allocation, NoneInTheLoopWithNormsOfParameters) {
  const Words lamb = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--optimizer",
                               "lamb", "--min-params", "1000"});
  expect_same_counts(2, {}, lamb);
  expect_same_counts(2, {"--deterministic", "across_ranks"}, lamb);
}

// Writing the file takes as many, however long the run was.
TEST(Allocation, NoneInTheLoopWhileATraceIsRecorded) {
  const testing_data::TempFolder folder;
  expect_same_counts(2, {"--min-params", "1000", "--trace", folder.path() + "/trace.json"});
}

}  // namespace
}  // namespace ofsdp
