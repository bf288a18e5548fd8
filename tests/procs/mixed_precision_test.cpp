// Mixed precision through the real program: every strategy gives the same bits in bfloat16,
// losses follow float32, float16 survives gradients that overflow, and the run uses the planned
// bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace mixed_precision_test {

using testing_data::TempFolder;

struct Outcome {
  std::string file;  // the trained model
  std::vector<double> losses;
  std::vector<bool> finite_norms;
  bool used_as_planned = false;
};

Outcome trained(const Words& words) {
  const TempFolder folder;
  const std::string metrics = folder.path() + "/metrics.jsonl";
  const std::string output = folder.path() + "/trained.onnx";
  const Finished done = Program::run(words + Words{"--metrics", metrics, "--output", output});
  EXPECT_EQ(done.status, 0) << done.err;
  Outcome run;
  if (done.status != 0) return run;
  run.file = onnx_bytes::content(output);
  for (const auto& row : rows_of(metrics)) {
    if (row["kind"] == "step") run.losses.push_back(row["loss"]);
    if (row["kind"] == "step") run.finite_norms.push_back(!row["grad_norm"].is_null());
    if (row["kind"] == "end") run.used_as_planned = row["peak_bytes"] == row["planned_peak_bytes"];
  }
  return run;
}

Words several_units(const std::string& dtype) {
  return mlp() + Words{"--min-params", "1000", "--global-batch-size", "24",
                       "--steps",      "12",   "--param-dtype",       dtype};
}

class MixedPrecisionTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, MixedPrecisionTest, testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param) + "_ranks"; });

TEST_P(MixedPrecisionTest, StrategiesAgreeInBfloat16) {
  const Words words = several_units("bfloat16") + ranks(GetParam());
  const Outcome first = trained(words);
  EXPECT_TRUE(first.used_as_planned);
  EXPECT_NE(first.file, trained(several_units("float32") + ranks(GetParam())).file);
  for (const char* strategy : {"shard_grad_op", "zero1", "no_shard", "hybrid_shard"}) {
    const Outcome run = trained(words + Words{"--strategy", strategy});
    EXPECT_TRUE(run.file == first.file) << strategy;
    EXPECT_TRUE(run.used_as_planned) << strategy;
  }
}

TEST_P(MixedPrecisionTest, LossesFollowFloat32) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    for (const char* accum : {"1", "2"}) {
      const Outcome run = trained(several_units(dtype) + ranks(GetParam()) +
                                  Words{"--grad-accum", accum, "--clip-grad-norm", "1"});
      const Outcome same = trained(several_units("float32") + ranks(GetParam()) +
                                   Words{"--grad-accum", accum, "--clip-grad-norm", "1"});
      ASSERT_EQ(run.losses.size(), same.losses.size());
      EXPECT_NE(run.losses, same.losses) << dtype;
      EXPECT_NEAR(run.losses.back(), same.losses.back(), 0.01 * same.losses.back()) << dtype;
    }
  }
}

TEST(MixedPrecision, ReductionInBfloat16RoundsTheSums) {
  const Words words = several_units("float32") + ranks(2);
  const Outcome rounded = trained(words + Words{"--reduce-dtype", "bfloat16"});
  const Outcome exact = trained(words);
  EXPECT_NE(rounded.file, exact.file);
  EXPECT_NEAR(rounded.losses.back(), exact.losses.back(), 0.01 * exact.losses.back());
  for (const char* strategy : {"shard_grad_op", "zero1", "no_shard"}) {
    const Outcome run =
        trained(words + Words{"--reduce-dtype", "bfloat16", "--strategy", strategy});
    EXPECT_TRUE(run.file == rounded.file) << strategy;
  }
}

// Inputs large enough that the first scaled gradients overflow.
TEST(MixedPrecision, Float16SurvivesGradientsThatOverflow) {
  const TempFolder folder;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 300);
  std::vector<float> x(64 * 20);
  for (float& v : x) v = normal(random);
  std::vector<int64_t> labels(64);
  for (int64_t& v : labels) v = static_cast<int64_t>(random() % 4);
  folder.write("x.npy", testing_data::npy("<f4", "(64, 20)", x));
  folder.write("labels.npy", testing_data::npy("<i8", "(64,)", labels));
  const Outcome run = trained(
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--data", folder.path(),
                "--steps", "24", "--lr", "1e-5", "--param-dtype", "float16"}) +
      ranks(2));
  ASSERT_EQ(run.finite_norms.size(), 24u);
  EXPECT_FALSE(run.finite_norms.front()) << "nothing overflowed";
  EXPECT_TRUE(run.finite_norms.back());
  for (const double loss : run.losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_NE(run.file, onnx_bytes::content(fixture("mlp/model.onnx")));
}

}  // namespace mixed_precision_test
}  // namespace ofsdp
