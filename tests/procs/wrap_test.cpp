// Units change where parameters lie and when they move, not what is computed: every --wrap follows
// the same trajectory, to rounding, on any number of ranks and under every strategy.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace wrap_test {

using testing_data::TempFolder;

const std::string kDecoder = OFSDP_SOURCE_DIR "/tests/oracle/cases/decoder/";

struct Trained {
  std::vector<double> losses;
  std::string out;
};

Trained train(const Words& words) {
  const TempFolder folder;
  const std::string metrics = folder.path() + "/m.jsonl";
  const Finished run =
      Program::run(fsdp_run({kDecoder + "dynamo.onnx", "--loss", "cross_entropy", "--no-shuffle",
                             "--global-batch-size", "8", "--clip-grad-norm", "1", "--metrics",
                             metrics, "--verbose"}) +
                   words);
  EXPECT_EQ(run.status, 0) << run.err;
  return {losses_of(metrics), run.out};
}

class WrapTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, WrapTest, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param) + "_ranks"; });

TEST_P(WrapTest, EveryPolicyFollowsTheSameTrajectory) {
  const std::vector<std::pair<Words, std::string>> policies = {
      {{"--wrap", "none"}, "1 unit"},
      {{"--wrap", "transformer"}, "4 units"},
      {{"--wrap", "size", "--min-params", "1"}, "20 units"},
      {{"--wrap", "size", "--min-params", "3000"}, "3 units"},
      {{"--wrap-layers", "Block,n"}, "5 units"},
      {{"--wrap-layers", "h.*.mlp"}, "4 units"}};
  const std::vector<double> expected = train(policies[0].first).losses;
  ASSERT_EQ(expected.size(), 10u);
  for (const auto& [policy, units] : policies) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
      const Trained found = train(policy + ranks(GetParam()) + Words{"--strategy", strategy});
      EXPECT_NE(found.out.find(units), std::string::npos) << units << "\n" << found.out;
      ASSERT_EQ(found.losses.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(found.losses[i], expected[i], 2e-6 * expected[i])
            << policy[1] << " " << strategy << ", step " << i + 1;
      }
    }
  }
}

// The table of units is part of `plan --verbose`.
TEST(Wrap, PlanPrintsTheUnits) {
  const Finished run = Program::run(
      fsdp_run({"plan", kDecoder + "legacy.onnx", "--loss", "cross_entropy", "--verbose"}) +
      ranks(2));
  EXPECT_EQ(run.status, 0) << run.err;
  for (const char* line :
       {"u0    h.0      12         2,224  8.69 KiB         2,240         1,120    12\n",
        "u1    h.1      12         2,224  8.69 KiB         2,240         1,120    12\n",
        "u2    h.2      12         2,224  8.69 KiB         2,240         1,120    12\n",
        "u3    root      3           512  2.00 KiB           512           256     5\n"}) {
    EXPECT_NE(run.out.find(line), std::string::npos) << line;
  }
}

TEST(Wrap, AnUnknownLayerIsRefused) {
  const Finished run = Program::run(
      fsdp_run({kDecoder + "dynamo.onnx", "--loss", "cross_entropy", "--wrap-layers", "Blokc"}) +
      ranks(2));
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("--wrap-layers Blokc"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("did you mean 'Block'?"), std::string::npos) << run.err;
}

}  // namespace wrap_test
}  // namespace ofsdp
