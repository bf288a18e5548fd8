// --watch through the real command: the units' norms add up to the run's norms, change no bit and
// are in the plan. After a NaN a run reports the ranges of the node's operands, and the update from
// which norms grew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace watch_test {

using nlohmann::json;
using testing::HasSubstr;
using testing_data::npy;

Words of_three_units() {
  return checkpointed_model() + Words{"--batch-size", "7", "--steps", "6", "--lr", "0.02"};
}

std::vector<json> watched(const CheckpointRuns& runs, const Words& words) {
  const std::string metrics = runs / "m.jsonl";
  runs.trained(words + Words{"--metrics", metrics});
  return rows_of(metrics, "step");
}

// The root of the sum of squares over units.
double together(const json& norms) {
  double squares = 0;
  for (const auto& [unit, norm] : norms.items()) squares += norm.get<double>() * norm.get<double>();
  return std::sqrt(squares);
}

TEST(Watch, ChangesNoBitUnderAnyStrategy) {
  const CheckpointRuns runs;
  for (const char* strategy : {"full_shard", "shard_grad_op", "zero1", "no_shard"}) {
    for (const int world : {1, 3}) {
      const Words words = of_three_units() + ranks(world) + Words{"--strategy", strategy};
      const bool same = runs.trained(words) == runs.trained(words + Words{"--watch", "on"});
      EXPECT_TRUE(same) << strategy << " on " << world;
    }
  }
  for (const Words& more :
       std::vector<Words>{{"--clip-grad-norm", "0.1", "--grad-accum", "2"},
                          {"--optimizer", "muon"},
                          {"--deterministic", "across_ranks"},
                          {"--param-dtype", "float16"},
                          {"--strategy", "hybrid_shard", "--shard-size", "1"}}) {
    const Words words = of_three_units() + ranks(2) + more;
    EXPECT_TRUE(runs.trained(words) == runs.trained(words + Words{"--watch", "2"})) << more[1];
  }
}

TEST(Watch, UnitsAddUpToTheRunsNormOnAnyNumberOfRanks) {
  const CheckpointRuns runs;
  const Words global = checkpointed_model() + Words{"--global-batch-size", "12",  "--steps", "6",
                                                    "--clip-grad-norm",    "0.2", "--watch", "on"};
  const auto one = watched(runs, global);
  ASSERT_EQ(one.size(), 6u);
  for (const json& row : one) {
    const double norm = row.at("grad_norm");
    EXPECT_NEAR(together(row.at("watch").at("grad_norm")), norm, 1e-6 * norm) << "before clipping";
    EXPECT_EQ(row.at("watch").at("grad_norm").size(), 3u);
    for (const auto& [unit, most] : row.at("watch").at("grad_max").items()) {
      EXPECT_GT(most.get<double>(), 0);
      EXPECT_LE(most.get<double>(), row.at("watch").at("grad_norm").at(unit).get<double>());
    }
  }
  for (const char* strategy : {"full_shard", "zero1", "no_shard"}) {
    const auto rows = watched(runs, global + ranks(3) + Words{"--strategy", strategy});
    ASSERT_EQ(rows.size(), one.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const auto& [kind, units] : one[i].at("watch").items()) {
        for (const auto& [unit, value] : units.items()) {
          const double expected = value;
          EXPECT_NEAR(rows[i].at("watch").at(kind).at(unit).get<double>(), expected,
                      2e-5 * expected)
              << strategy << " " << kind << " " << unit << " at " << i;
        }
      }
    }
  }
}

// float16: gradients are watched without the loss scale.
TEST(Watch, UnscaledAndOfTheWeightsBeforeTheUpdate) {
  const CheckpointRuns runs;
  const Words words = of_three_units() + Words{"--watch", "on", "--lr", "0"} + ranks(2);
  const auto rows = watched(runs, words);
  const auto half = watched(runs, words + Words{"--param-dtype", "float16"});
  for (size_t i = 0; i < rows.size(); ++i) {
    const json &watch = rows[i].at("watch"), &same = half[i].at("watch");
    EXPECT_EQ(watch.at("weight_norm"), rows[0].at("watch").at("weight_norm")) << "a rate of 0";
    EXPECT_EQ(watch.at("weight_max"), same.at("weight_max")) << "of the masters";
    const double norm = together(watch.at("grad_norm"));
    EXPECT_NEAR(together(same.at("grad_norm")), norm, 0.02 * norm);
  }
  const Words moving = of_three_units() + Words{"--watch", "on"} + ranks(2);
  const auto moved = watched(runs, moving);
  EXPECT_EQ(moved[0].at("watch").at("weight_norm"), rows[0].at("watch").at("weight_norm"));
  EXPECT_NE(moved[1].at("watch").at("weight_norm"), rows[0].at("watch").at("weight_norm"));
}

TEST(Watch, EveryNthUpdateAndAsPlanned) {
  const CheckpointRuns runs;
  const std::string metrics = runs / "m.jsonl";
  for (const char* strategy : {"full_shard", "no_shard"}) {
    const auto rows =
        watched(runs, of_three_units() + ranks(3) + Words{"--watch", "3", "--strategy", strategy});
    for (const json& row : rows) {
      EXPECT_EQ(row.contains("watch"), row.at("step").get<int64_t>() % 3 == 0) << row;
    }
    const auto end = rows_of(metrics, "end").at(0);
    EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes")) << strategy;
  }
  Words plan = of_three_units();
  plan.insert(plan.begin() + 1, {"plan", "--verbose", "--schedule"});
  const Finished with = Program::run(plan + ranks(2) + Words{"--watch", "on"});
  EXPECT_THAT(with.out, HasSubstr("watched norms (of ranks, of updates)"));
  EXPECT_THAT(with.out, HasSubstr(" Watch"));
  const std::string without = Program::run(plan + ranks(2)).out;
  EXPECT_THAT(without, testing::Not(HasSubstr("watched norms")));
  EXPECT_THAT(without, testing::Not(HasSubstr(" Watch")));
}

TEST(Watch, NeedsTheCpu) {
  const Start device{.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}};
  const Words words = of_three_units() + Words{"--watch", "on"};
  const Finished refused = Program::run(words + Words{"--device", "cuda"}, device);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--device cuda: --watch keeps norms of the CPU's updates"));
}

// Without --watch: a table on stdout and one line on stderr, once, from the rank with the NaN.
TEST(AfterANan, TheRangesOfTheNodesOperandsAreSaid) {
  const ModelFolder folder;
  std::vector<float> values(48, 0.5f);
  values[4 * 2 + 1] = std::nanf("");
  folder.write("data/x.npy", npy("<f4", "(12, 4)", values));
  const Words train = fsdp_run({folder.model(), "--loss", "cross_entropy", "--steps", "3",
                                "--no-shuffle", "--global-batch-size", "2"});
  for (const int world : {1, 2}) {
    const Finished run = Program::run(train + ranks(world));
    EXPECT_EQ(run.status, 1);
    expect_one_line(run.err, {"loss is NaN at step 2", "node 'multiply'"});
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    const size_t at = run.out.find("operands of 'multiply' (");
    ASSERT_NE(at, std::string::npos) << run.out;
    EXPECT_EQ(run.out.find("operands of", at + 1), std::string::npos) << run.out;
    EXPECT_THAT(run.out, HasSubstr("input   'x'"));
    EXPECT_THAT(run.out, HasSubstr("0.5 to 0.5, 1 NaN"));
    EXPECT_THAT(run.out, HasSubstr("output  "));
    EXPECT_THAT(run.out, testing::Not(HasSubstr("norms")));
  }
}

// Plain descent on squares with a rate a hundred times too large from update 21 on: update 22 is
// the first to see those weights.
TEST(AfterANan, TheUpdateWhereNormsBeganToGrowIsSaid) {
  const ModelFolder folder;
  std::vector<float> targets(36);
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<float>(i % 7) / 4;
  folder.write("data/labels.npy", npy("<f4", "(12, 3)", targets));
  const Words train = fsdp_run(
      {folder.model(), "--loss",       "mse",  "--optimizer",   "sgd",       "--lr",
       "0.01",         "--batch-size", "2",    "--lr-schedule", "multistep", "--schedule-unit",
       "step",         "--milestones", "20",   "--gamma",       "10000",     "--steps",
       "200",          "--epochs",     "1000", "--watch",       "on"});
  for (const int world : {1, 2}) {
    const Finished run = Program::run(train + ranks(world));
    EXPECT_EQ(run.status, 1) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_THAT(run.err, HasSubstr("NaN"));
    EXPECT_THAT(run.out, HasSubstr("norms grew from step 22 on (to step "));
    EXPECT_THAT(run.out, HasSubstr("  gradient of unit 0 (root): "));
    EXPECT_THAT(run.out, HasSubstr("  weights  of unit 0 (root): "));
  }
}

}  // namespace watch_test
}  // namespace ofsdp
