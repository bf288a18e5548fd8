// The contract's "same bits": strategy, prefetch and a second run must not change a byte of the
// trained file.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace same_bits_test {

using testing_data::TempFolder;

constexpr const char* kOtherStrategies[] = {"shard_grad_op", "zero1", "no_shard"};  // as full_shard

// Several units, batches that are not a multiple of anything, and a short last one.
Words several_units() {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                   "--batch-size", "7", "--steps", "12"});
}

std::string trained_file(const Words& words, const char* units = "3 units") {
  const TempFolder folder;
  const std::string path = folder.path() + "/trained.onnx";
  const Finished run = Program::run(words + Words{"--output", path, "--verbose"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find(units), std::string::npos) << run.out;
  return onnx_bytes::content(path);
}

// Not EXPECT_EQ, which would print two files.
void expect_same(const std::string& file, const std::string& other, const std::string& what) {
  EXPECT_FALSE(file.empty());
  const auto [a, b] = std::mismatch(file.begin(), file.end(), other.begin(), other.end());
  EXPECT_TRUE(file == other) << what << ": " << file.size() << " and " << other.size()
                             << " bytes, first difference at " << a - file.begin();
}

class SameBitsTest : public testing::TestWithParam<int> {
 protected:
  Words words() const { return several_units() + ranks(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, SameBitsTest, testing::Values(2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "_ranks"; });

TEST_P(SameBitsTest, StrategiesAgree) {
  const std::string first = trained_file(words() + Words{"--strategy", "full_shard"});
  EXPECT_NE(first, onnx_bytes::content(fixture("mlp/model.onnx"))) << "nothing was trained";
  for (const char* strategy : kOtherStrategies) {
    expect_same(first, trained_file(words() + Words{"--strategy", strategy}), strategy);
  }
}

// The second and the third unit; the third has few parameters.
TEST_P(SameBitsTest, StrategiesAgreeWithJoinedUnits) {
  const char* const units = "2 units";
  const Words small = words() + Words{"--min-params", "1", "--clip-grad-norm", "0.1"};
  const Words joined = small + Words{"--bucket-mb", "0.013"};
  const std::string first = trained_file(joined + Words{"--strategy", "full_shard"}, units);
  for (const char* strategy : kOtherStrategies) {
    expect_same(first, trained_file(joined + Words{"--strategy", strategy}, units), strategy);
  }
}

TEST_P(SameBitsTest, StrategiesAgreeWhenGradientsAreClipped) {
  const Words clipped = words() + Words{"--clip-grad-norm", "0.1"};
  const std::string first = trained_file(clipped + Words{"--strategy", "full_shard"});
  for (const char* strategy : kOtherStrategies) {
    expect_same(first, trained_file(clipped + Words{"--strategy", strategy}), strategy);
  }
  EXPECT_NE(first, trained_file(words())) << "the clip had no effect";
}

// Optimizers of groups, one with norms of whole parameters, and the written average.
TEST_P(SameBitsTest, StrategiesAgreeWithGroupsAndAnAverage) {
  const Words grouped = words() + Words{"--group",         "*bias:optimizer=lamb,lr=0.02",
                                        "--group",         "fc2*:lr=3x",
                                        "--ema",           "0.7",
                                        "--eval-data",     fixture("mlp/data"),
                                        "--eval-interval", "5step"};
  const std::string first = trained_file(grouped + Words{"--strategy", "full_shard"});
  for (const char* strategy : kOtherStrategies) {
    expect_same(first, trained_file(grouped + Words{"--strategy", strategy}), strategy);
  }
  const TempFolder folder;
  const Words saved{"--checkpoint-dir", folder.path(),  "--checkpoint-interval", "1step",
                    "--strategy",       "shard_grad_op"};
  trained_file(grouped + saved + Words{"--steps", "7"});
  expect_same(first, trained_file(grouped + saved + Words{"--resume", "latest"}), "resumed");
  EXPECT_NE(first, trained_file(grouped + Words{"--ema-use", "off"})) << "no average was written";
}

// Each rank keeps a different number of rows per micro-batch (importer/passes/joined_nodes.cpp).
TEST_P(SameBitsTest, StrategiesAgreeOnRowsWithAndWithoutLabels) {
  constexpr size_t kRows = 900, kWidth = 20;
  std::vector<float> x(kRows * kWidth);
  std::vector<int64_t> labels(kRows);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  for (size_t i = 0; i < kRows; ++i) labels[i] = i * 31 % 100 < 20 ? int64_t(i % 1030) : -100;
  const TempFolder folder;
  folder.write("x.npy", testing_data::npy("<f4", "(900, 20)", x));
  folder.write("labels.npy", testing_data::npy("<i8", "(900,)", labels));
  const Words some{"--data",       folder.path(), "--replace-head", "1030",
                   "--batch-size", "150",         "--steps",        "4"};
  const std::string first = trained_file(words() + some + Words{"--strategy", "full_shard"});
  for (const char* strategy : kOtherStrategies) {
    expect_same(first, trained_file(words() + some + Words{"--strategy", strategy}), strategy);
  }
  const Finished plan = Program::run(
      fsdp_run({"plan", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--verbose"}) + some);
  EXPECT_NE(plan.out.find("kept_rows 1"), std::string::npos) << plan.out << plan.err;
}

// All ranks read parameters that lie in place: nobody may update them while another rank
// evaluates.
TEST_P(SameBitsTest, EvaluationsBetweenUpdatesAgree) {
  const TempFolder folder;
  const auto evaluated = [&](const char* strategy) {
    const std::string metrics = folder.path() + "/" + strategy;
    const Words more{"--eval-data",     fixture("mlp/data"),
                     "--eval-interval", "1step",
                     "--strategy",      strategy,
                     "--metrics",       metrics};
    const Finished run = Program::run(words() + more);
    EXPECT_EQ(run.status, 0) << run.err;
    const std::vector<double> losses = losses_of(metrics, "eval");
    EXPECT_EQ(losses.size(), 12u);
    return losses;
  };
  EXPECT_EQ(evaluated("full_shard"), evaluated("no_shard"));
}

TEST_P(SameBitsTest, ShardedStrategiesAgreeWithAccumulation) {
  for (const Words& clip : {Words{}, Words{"--clip-grad-norm", "0.1"}}) {
    const Words twice = words() + clip + Words{"--grad-accum", "2"};
    expect_same(trained_file(twice + Words{"--strategy", "full_shard"}),
                trained_file(twice + Words{"--strategy", "shard_grad_op"}),
                clip.empty() ? "shard_grad_op" : "shard_grad_op, clipped");
  }
}

TEST_P(SameBitsTest, WholeGradientStrategiesAgreeWithAccumulation) {
  for (const Words& clip : {Words{}, Words{"--clip-grad-norm", "0.1"}}) {
    const Words twice = words() + clip + Words{"--grad-accum", "3"};
    expect_same(trained_file(twice + Words{"--strategy", "no_shard"}),
                trained_file(twice + Words{"--strategy", "zero1"}),
                clip.empty() ? "zero1" : "zero1, clipped");
  }
}

// One copy is full_shard, copies of one rank are no_shard.
TEST_P(SameBitsTest, HybridAtItsEndsIsTheOtherStrategies) {
  const std::string first = trained_file(words());
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    const Words hybrid = words() + Words{"--strategy", strategy};
    expect_same(first, trained_file(hybrid), strategy);
    expect_same(first, trained_file(hybrid + Words{"--shard-size", "1"}), strategy);
  }
}

TEST_P(SameBitsTest, TwoRunsAgreeAndAnotherSeedDoesNot) {
  const std::string first = trained_file(words() + Words{"--seed", "5"});
  expect_same(first, trained_file(words() + Words{"--seed", "5"}), "second run");
  EXPECT_NE(first, trained_file(words() + Words{"--seed", "6"})) << "the order of samples is fixed";
}

TEST_P(SameBitsTest, PrefetchIsOnlyAnOrder) {
  const std::string first = trained_file(words());
  const std::vector<Words> all = {
      {"--backward-prefetch", "pre"},
      {"--backward-prefetch", "post"},
      {"--backward-prefetch", "none"},
      {"--forward-prefetch", "on"},
      {"--forward-prefetch", "off"},
      {"--prefetch-depth", "0"},
      {"--prefetch-depth", "1"},
      {"--prefetch-depth", "3"},
      {"--backward-prefetch", "post", "--forward-prefetch", "off", "--prefetch-depth", "2"}};
  for (const Words& prefetch : all) {
    expect_same(first, trained_file(words() + prefetch), format_text("{}", joined(prefetch, " ")));
  }
}

TEST_P(SameBitsTest, ActivationCheckpointingIsOnlyMemory) {
  for (const Words& more : {Words{}, Words{"--grad-accum", "2"}, Words{"--strategy", "zero1"}}) {
    const std::string first = trained_file(words() + more);
    for (const char* how : {"unit", "auto"}) {
      expect_same(first, trained_file(words() + more + Words{"--activation-checkpointing", how}),
                  how);
    }
  }
}

// Units are sharded here; without sharding they are whole.
TEST_P(SameBitsTest, FrozenParametersAreSharedOutAsWell) {
  const Words some = words() + Words{"--freeze", "*weight"};
  const std::string first = trained_file(some + Words{"--strategy", "no_shard"}, "1 unit");
  EXPECT_NE(first, trained_file(words()));
  expect_same(first, trained_file(some + Words{"--strategy", "zero1"}, "1 unit"), "zero1");
  for (const char* strategy : {"full_shard", "shard_grad_op"}) {
    expect_same(first, trained_file(some + Words{"--strategy", strategy}), strategy);
  }
}

// Dropout must drop the same elements when it runs again.
TEST(SameBitsWithDropout, ActivationCheckpointingIsOnlyMemory) {
  const Words words =
      fsdp_run({fixture("dropout/model.onnx"), "--data", fixture("mlp/data"), "--loss",
                "cross_entropy", "--wrap", "size", "--min-params", "1100", "--steps", "6"}) +
      ranks(2);
  const std::string first = trained_file(words);
  expect_same(first, trained_file(words + Words{"--activation-checkpointing", "unit"}), "unit");
  EXPECT_NE(first, trained_file(words + Words{"--seed", "9"})) << "nothing is random";
}

// ---- --deterministic across_ranks ----

Words on_ranks(int world, const std::string& strategy) {
  return ranks(world) + Words{"--strategy", strategy, "--deterministic", "across_ranks"};
}

// Global batches that no number of ranks divides, and a short last one.
void expect_no_trace_of_ranks(const Words& words, const char* units) {
  const std::string first = trained_file(words + on_ranks(1, "full_shard"), units);
  for (const int world : {1, 2, 4}) {
    for (const char* strategy : kOtherStrategies) {
      expect_same(first, trained_file(words + on_ranks(world, strategy), units),
                  format_text("{} on {}", strategy, world));
    }
  }
  for (const int world : {2, 3, 4}) {
    expect_same(first, trained_file(words + on_ranks(world, "full_shard"), units),
                format_text("full_shard on {}", world));
  }
  const Words copies = on_ranks(4, "hybrid_shard") + Words{"--shard-size", "2"};
  expect_same(first, trained_file(words + copies, units), "two copies on 4");
}

TEST(AcrossRanks, NoNumberOfRanksAndNoStrategyChangesABit) {
  const Words words =
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                "--global-batch-size", "21", "--steps", "12"});
  expect_no_trace_of_ranks(words, "3 units");
  expect_no_trace_of_ranks(words + Words{"--clip-grad-norm", "0.1"}, "3 units");
}

TEST(AcrossRanks, RunningStatisticsAreThoseOfTheFirstSlice) {
  const Words words = fsdp_run({OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/legacy.onnx",
                                "--loss", "cross_entropy", "--data", "synthetic", "--steps", "3",
                                "--global-batch-size", "22", "--wrap", "none"});
  expect_no_trace_of_ranks(words, "1 unit");
}

// The requested size of micro-batches is the size of the slices.
TEST(AcrossRanks, MicroBatchesAreTheSlices) {
  const Words words = several_units() + Words{"--deterministic", "across_ranks"};
  expect_same(trained_file(words + Words{"--grad-accum", "4"}),
              trained_file(words + Words{"--grad-accum", "2"} + ranks(2)), "2 ranks");
}

// The norms of whole parameters, over shards that cut them anywhere.
TEST_P(SameBitsTest, StrategiesAgreeOnTrustRatios) {
  for (const Words& more : {Words{}, Words{"--clip-grad-norm", "0.1"}, Words{"--wrap", "none"}}) {
    const Words lamb = words() + Words{"--optimizer", "lamb", "--weight-decay", "0.1"} + more;
    const char* units = more == Words{"--wrap", "none"} ? "1 unit" : "3 units";
    const std::string first = trained_file(lamb + Words{"--strategy", "full_shard"}, units);
    for (const char* strategy : kOtherStrategies) {
      expect_same(first, trained_file(lamb + Words{"--strategy", strategy}, units), strategy);
    }
  }
}

TEST(AcrossRanks, TrustRatiosAreExact) {
  expect_no_trace_of_ranks(
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                "--global-batch-size", "21", "--steps", "6", "--optimizer", "lamb"}),
      "3 units");
}

class OptimizerBitsTest : public testing::TestWithParam<std::string> {};

std::vector<std::string> offered_optimizers() {
  return {
#define OPTIMIZER(name, ...) #name,
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
  };
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerBitsTest, testing::ValuesIn(offered_optimizers()),
                         [](const auto& info) { return info.param; });

TEST_P(OptimizerBitsTest, StrategiesAgree) {
  Words words = several_units() + ranks(2) + Words{"--optimizer", GetParam()};
  if (GetParam() == "sgd") words = words + Words{"--momentum", "0.9", "--nesterov"};
  const std::string first = trained_file(words + Words{"--strategy", "full_shard"});
  for (const char* strategy : kOtherStrategies) {
    expect_same(first, trained_file(words + Words{"--strategy", strategy}), strategy);
  }
}

}  // namespace same_bits_test
}  // namespace ofsdp
