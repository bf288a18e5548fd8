// Rows from all ranks: synchronized batch normalization and the contrastive loss. N ranks equal one
// with all rows, also if a rank has fewer rows or none; strategies and a resume change no bits.
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace joined_rows_test {

using testing::HasSubstr;

// Arguments after the command; the last batch leaves a rank without rows.
struct Joined {
  const char* name;
  Words words;
};

class JoinedRows : public testing::TestWithParam<Joined> {
 protected:
  void SetUp() override {
    std::vector<float> x;
    for (int i = 0; i < 20 * 20; ++i) x.push_back(std::sin(static_cast<float>(i * i % 97)));
    data_.write("x.npy", testing_data::npy("<f4", "(20, 20)", x));
  }
  Words arguments() const {
    Words all =
        GetParam().words +
        Words{"--optimizer",         "sgd", "--lr", "0.05", "--steps", "15", "--epochs", "100",
              "--global-batch-size", "6"};
    if (std::string(GetParam().name) == "Contrastive") all = all + Words{"--data", data_.path()};
    return all;
  }
  Words words() const { return fsdp_run(arguments()); }
  std::vector<float> weights() const {
    std::vector<float> all;
    const auto file = OnnxFile::open(runs_ / "trained.onnx");
    for (const Initializer& weight : file->initializers()) {
      if (weight.dtype != DType::kFloat32) continue;
      std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
      EXPECT_TRUE(file->read(weight, 0, values).ok());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  const CheckpointRuns runs_;
  const testing_data::TempFolder data_;
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, JoinedRows,
    testing::Values(Joined{"SyncBatchNorm",
                           {OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/legacy.onnx", "--loss",
                            "cross_entropy", "--sync-batch-norm", "on"}},
                    Joined{"Contrastive",
                           {fixture("mlp/model.onnx"), "--loss", "contrastive:logits:logits:0.5",
                            "--min-params", "1000"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(JoinedRows, RanksAreOneRank) {
  const std::string metrics = runs_ / "metrics.jsonl";
  std::vector<std::pair<int64_t, double>> losses;
  std::vector<float> expected;
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(world);
    runs_.trained(words() + ranks(world) + Words{"--metrics", metrics});
    const auto end = rows_of(metrics, "end").at(0);
    EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes"));
    const auto found = losses_by_step(metrics);
    if (world == 1) losses = found;
    if (world == 1) expected = weights();
    ASSERT_EQ(found.size(), losses.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i].second, losses[i].second, 2e-5 * losses[i].second) << "step " << i + 1;
    }
    const auto trained = weights();
    ASSERT_EQ(trained.size(), expected.size());
    for (size_t i = 0; i < trained.size(); ++i) {
      ASSERT_NEAR(trained[i], expected[i], 2e-5) << "weight " << i;
    }
  }
}

TEST_P(JoinedRows, NeitherStrategyNorResumeChangesBits) {
  const std::string expected = runs_.trained(words() + ranks(3));
  for (const char* strategy : {"shard_grad_op", "zero1", "no_shard"}) {
    EXPECT_TRUE(runs_.trained(words() + ranks(3) + Words{"--strategy", strategy}) == expected)
        << strategy;
  }
  runs_.trained(words() + ranks(3) + runs_.saving() + Words{"--steps", "5"});
  EXPECT_TRUE(runs_.trained(words() + ranks(3) + runs_.resuming()) == expected) << "resumed";
}

TEST_P(JoinedRows, AcrossRanksGivesTheSameBits) {
  const Words across = words() + Words{"--deterministic", "across_ranks"};
  const std::string expected = runs_.trained(across);
  for (const int world : {2, 3}) {
    EXPECT_TRUE(runs_.trained(across + ranks(world)) == expected) << world << " ranks";
  }
}

// The exchange begins at PostRows on the communication stream, next to the nodes up to the first
// reader; ranks with fewer rows, or none, are launched step by step.
TEST_P(JoinedRows, DevicesGiveTheBitsOfTheCpu) {
  for (const int world : {1, 2, 3}) {
    const Words command = words() + ranks(world);
    const Trained cpu = on_cpu(command);
    for (const int seed : {1, 2}) {
      SCOPED_TRACE(format_text("{} ranks, seed {}", world, seed));
      Trained device = on_counting_device(command, {}, seed);
      expect_same_bits(cpu, device);
      EXPECT_EQ(device.counts["captured_collectives"] > 0, world > 1);
    }
    expect_same_bits(cpu, on_counting_device(command, {"--cuda-graph", "off"}));
  }
}

TEST_P(JoinedRows, DevicesGiveTheBitsOfTheCpuUnderEveryStrategy) {
  for (const char* strategy : {"shard_grad_op", "zero1", "no_shard"}) {
    const Words command = words() + ranks(3) + Words{"--strategy", strategy, "--grad-accum", "2"};
    expect_same_bits(on_cpu(command), on_counting_device(command));
  }
}

TEST_P(JoinedRows, CudaKernelsGiveTheLossesOfTheCpu) {
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(world);
    const Words command = words() + ranks(world) + Words{"--steps", "5"};
    expect_near_losses(on_cpu(command), run_on_device(OFSDP_EMULATED_DEVICE, command), 5e-5);
  }
}

TEST_P(JoinedRows, AreInThePlan) {
  const Finished plan =
      Program::run(fsdp_run(Words{"plan", "--schedule"} + arguments() + ranks(2)));
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("PostRows n"));
  EXPECT_THAT(plan.out, HasSubstr("JoinRows n"));
}

// Each rank normalizes its rows with separate statistics. The file gets rank 0's, and an evaluation
// takes these on every rank.
TEST(OwnStatistics, AnEvaluationIsThatOfTheWrittenFile) {
  const std::string data = OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/data";
  const Words command = fsdp_run({OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/legacy.onnx",
                                  "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.05",
                                  "--steps", "9", "--epochs", "100", "--global-batch-size", "6",
                                  "--eval-data", data, "--eval-interval", "4step"});
  for (const int world : {2, 3}) {
    SCOPED_TRACE(world);
    Trained device = on_counting_device(command + ranks(world));
    expect_same_bits(on_cpu(command + ranks(world)), device);
    const testing_data::TempFolder folder;
    const std::string file = folder.write("trained.onnx", device.file);
    const Finished alone =
        Program::run(fsdp_run({"eval", file, "--loss", "cross_entropy", "--data", data, "--json"}));
    EXPECT_EQ(alone.status, 0) << alone.err;
    EXPECT_EQ(device.rows.back().at("kind"), "eval");
    const double expected = nlohmann::json::parse(alone.out).at("loss");
    EXPECT_NEAR(device.rows.back().at("loss"), expected, 1e-6 * expected);
  }
}

}  // namespace joined_rows_test
}  // namespace ofsdp
