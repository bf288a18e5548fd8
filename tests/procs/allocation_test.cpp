// No thread that runs the schedule asks for memory once every planned shape has been run. A
// preloaded library (tests/preload) counts allocations in the whole process: the count does not
// depend on the number of epochs. oneDNN's calls inside a primitive are counted apart and bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace allocation_test {

constexpr double kRace = 8;
constexpr long kOneDnnCalls = 64;  // in a run of a primitive; [Note: oneDNN and malloc]

struct Counts {
  long ours = 0, onednn = 0;  // calls that ask for memory
  long runs = 0;              // runs of oneDNN's primitives
};

// The requests of each process's main thread, by rank ("launcher" is the parent).
std::map<std::string, Counts> counted(const Words& command) {
  const testing_data::TempFolder folder;
  const std::string file = folder.path() + "/counts";
  Start start;
  start.environment = {"LD_PRELOAD=" OFSDP_COUNT_ALLOCATIONS, "COUNT_ALLOCATIONS=" + file};
  const Finished run = Program::run(command, start);
  EXPECT_EQ(run.status, 0) << run.err;
  std::map<std::string, Counts> counts;
  std::ifstream lines(file);
  std::string rank;
  for (Counts one; lines >> rank >> one.ours >> one.onednn >> one.runs;) counts[rank] = one;
  return counts;
}

// With batches of 5 a rank the last batch of the 192 samples is short; so is the last batch of the
// evaluation in every epoch.
Words run_of(int epochs, int world, const Words& more, const Words& model) {
  const std::string data = fixture("mlp/data");
  return model + ranks(world) + more +
         Words{"--batch-size", "5", "--epochs", std::to_string(epochs), "--eval-data", data};
}

void expect_none_more(const std::string& name, const Counts& two, const Counts& sixty) {
  EXPECT_GT(two.ours, 1000) << "planning allocates; a count of nothing counts nothing";
  EXPECT_NEAR(two.ours, sixty.ours, kRace) << name;
  const long calls = sixty.onednn - two.onednn, runs = sixty.runs - two.runs;
  EXPECT_GT(runs, 0) << name;
  EXPECT_LE(calls, kOneDnnCalls * runs) << name;
  std::printf("%s: ours %ld, oneDNN %.1f a run of %ld\n", name.c_str(), sixty.ours - two.ours,
              static_cast<double>(calls) / static_cast<double>(std::max(runs, 1L)), runs);
}

void expect_same_counts(int world, const Words& more, const Words& model = mlp()) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers bring their own malloc";
#endif
  const auto two = counted(run_of(2, world, more, model));
  const auto sixty = counted(run_of(60, world, more, model));
  if (world == 1) return expect_none_more("launcher", two.at("launcher"), sixty.at("launcher"));
  for (int rank = 0; rank < world; ++rank) {
    const std::string name = std::to_string(rank);
    ASSERT_TRUE(two.contains(name) && sixty.contains(name)) << name;
    expect_none_more("rank " + name, two.at(name), sixty.at(name));
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

TEST(Allocation, NoneInTheLoopWithStatesOfFewerBits) {
  const Words lamb = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--optimizer",
                               "lamb", "--group", "fc*:optimizer=adamw", "--min-params", "1000"});
  for (const char* dtype : {"bfloat16", "int8"}) {
    expect_same_counts(2, {"--state-dtype", dtype}, lamb);
  }
}

// Writing the file takes the same number of calls, however long the run was.
TEST(Allocation, NoneInTheLoopWhileATraceIsRecorded) {
  const testing_data::TempFolder folder;
  const std::string trace = folder.path() + "/trace.json";
  std::ofstream{trace};  // both runs find a file there, and compare its name with the inputs
  expect_same_counts(2, {"--min-params", "1000", "--trace", trace});
}

}  // namespace allocation_test
}  // namespace ofsdp
