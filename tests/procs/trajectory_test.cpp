// The real program against PyTorch: losses and gradient norms of every step, for every strategy,
// number of ranks and accumulation. PyTorch made the references in float32, for the acceptance
// cases (expected.json has the versions).
#include "tests/support/trajectory.h"

#include <gtest/gtest.h>

#include "tests/support/mnist_images.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace trajectory_test {

using testing_data::TempFolder;

Trajectory trained(const Words& words) {
  const TempFolder folder;
  const std::string metrics = folder.path() + "/metrics.jsonl";
  const Finished run = Program::run(words + Words{"--metrics", metrics});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return steps_of(metrics);
}

struct Combination {
  int ranks;
  std::string strategy;
  int grad_accum;

  Words words() const {
    Words all{"--nproc-per-node", std::to_string(ranks),      "--strategy",          strategy,
              "--grad-accum",     std::to_string(grad_accum), "--global-batch-size", "24"};
    if (strategy.starts_with("hybrid")) all = all + Words{"--shard-size", "2"};
    return all;
  }
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "zero1", "no_shard"}) {
      for (const int accum : {1, 2}) all.push_back({ranks, strategy, accum});
    }
  }
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    for (const int accum : {1, 2}) all.push_back({4, strategy, accum});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Combination>& info) {
  return info.param.strategy + "_" + std::to_string(info.param.ranks) + "_ranks_" +
         std::to_string(info.param.grad_accum) + "_forwards";
}

class TrajectoryTest : public testing::TestWithParam<Combination> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, TrajectoryTest, testing::ValuesIn(combinations()), name_of);

// Units with a layer or two each, so that the run can gather ahead.
TEST_P(TrajectoryTest, MultiLayerPerceptronFollowsPyTorch) {
  const Words words = mlp() + GetParam().words() + Words{"--steps", "32", "--min-params", "1000"};
  expect_near(trained(words), reference("mlp"));
}

TEST_P(TrajectoryTest, MnistNetworkFollowsPyTorch) {
  const FirstImages images;
  const Words words = fsdp_run({images.model(), "--data", images.path(), "--steps", "10"}) +
                      mnist_settings() + GetParam().words();
  expect_near(trained(words), reference("mnist_cnn"));
}

// Another exporter, and a graph with a loss inside.
TEST(TrajectoryVariantTest, OtherExportsOfTheModelFollowPyTorch) {
  for (const char* model : {"model_legacy.onnx", "model_with_loss.onnx"}) {
    for (const int count : {1, 3}) {
      SCOPED_TRACE(format_text("{} with {} ranks", model, count));
      const Words words = mlp(model) + ranks(count) +
                          Words{"--global-batch-size", "24", "--steps", "32", "--min-params", "0"};
      expect_near(trained(words), reference("mlp"));
    }
  }
}

// 192 samples in batches of 30: each epoch ends in a batch of 12, with unequal shares on ranks.
TEST(TrajectoryVariantTest, FiveRanksWithUnequalSharesFollowOneRank) {
  const Words words = mlp() + Words{"--steps", "21", "--min-params", "1000"};
  const Words batch = {"--global-batch-size", "30"};
  const Trajectory alone = trained(words + batch);
  ASSERT_EQ(alone.losses.size(), 21u);
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const char* accum : {"1", "2"}) {
      SCOPED_TRACE(format_text("{}, {} forwards", strategy, accum));
      expect_near(
          trained(words + batch + ranks(5) + Words{"--strategy", strategy, "--grad-accum", accum}),
          alone);
    }
  }
}

// Gradients of ignored parameters stay until the update; gradients of sharded units do not.
TEST(TrajectoryVariantTest, IgnoredParametersWithAccumulationFollowPyTorch) {
  const Words words =
      mlp() + Words{"--steps", "32", "--min-params", "20", "--global-batch-size", "24"};
  for (const char* ignored : {"fc1.*", "fc2.*", "head.*", "*bias", "*weight"}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "zero1"}) {
      for (const int count : {1, 2}) {
        for (const char* accum : {"2", "3"}) {
          SCOPED_TRACE(format_text("{}, {}, {} ranks, {}", ignored, strategy, count, accum));
          expect_near(
              trained(words + ranks(count) +
                      Words{"--ignore", ignored, "--strategy", strategy, "--grad-accum", accum}),
              reference("mlp"));
        }
      }
    }
  }
}

// 190 samples a batch on 12 ranks: the last batch leaves some ranks without a sample.
TEST(TrajectoryVariantTest, RanksWithoutSamplesTakePart) {
  const Words words = mlp() + Words{"--epochs", "2", "--global-batch-size", "190"};
  expect_near(trained(words + ranks(5)), trained(words));
}

// LAMB, and the mean over the ranks' means, against PyTorch in float64.
std::vector<double> losses(const Words& words) { return trained(words).losses; }

Words without_order() {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--no-shuffle",
                   "--min-params", "1000"});
}

TEST(LambTest, FollowsPyTorchOnAnyNumberOfRanks) {
  const std::vector<double> torch = {1.60981438, 1.59157448, 1.60871076, 1.59230545, 1.53927759,
                                     1.53469273, 1.47517439, 1.495016,   1.4307514,  1.42921142,
                                     1.44029137, 1.38471357, 1.36745182, 1.31124113, 1.18904772,
                                     1.22103442, 1.21861248, 1.2159972,  1.25126686, 1.11427117,
                                     1.15060661, 1.00938193, 0.83898916, 0.865093439};
  const Words words =
      without_order() +
      Words{"--optimizer",         "lamb", "--lr",    "0.02", "--weight-decay", "0.01",
            "--global-batch-size", "24",   "--steps", "24"};
  for (const int count : {1, 2, 3}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "zero1", "no_shard"}) {
      SCOPED_TRACE(format_text("{} on {}", strategy, count));
      expect_near(losses(words + ranks(count) + Words{"--strategy", strategy}), torch, 2e-5,
                  "loss of step");
    }
  }
  const Words twice = words + ranks(2) + Words{"--grad-accum", "2"};
  expect_near(losses(twice), torch, 2e-5, "loss of step with accumulation");
  const Words copies = words + ranks(4) + Words{"--strategy", "hybrid_shard", "--shard-size", "2"};
  expect_near(losses(copies), torch, 2e-5, "loss of step with two copies");
}

struct PerRank {
  int ranks, batch_size, grad_accum;
  std::vector<double> torch;
};

// Labels of one class do not count, so ranks and micro-batches count different numbers of labels;
// in the last batch some ranks have fewer samples.
TEST(LossMeanTest, MeanOfTheRanksMeansFollowsPyTorch) {
  const std::vector<PerRank> runs = {
      {1,
       12,
       1,
       {1.56527089, 1.5229079, 1.54404201, 1.49399086, 1.46849432, 1.52109841, 1.51145423,
        1.51044727, 1.45439272, 1.44518799, 1.4094828, 1.38542253}},
      {3,
       4,
       1,
       {1.56612366, 1.52236672, 1.55208174, 1.51236252, 1.4836514, 1.46896579, 1.52462388,
        1.51955833, 1.44843199, 1.44470982, 1.41055468, 1.38766217}},
      {5,
       4,
       1,
       {1.55792713, 1.53734477, 1.48336745, 1.59052381, 1.53388685, 1.48430946, 1.46020975,
        1.42189958, 1.46786435, 1.40016984, 1.40483486, 1.3995318}},
      {2,
       3,
       2,
       {1.5621306, 1.53250503, 1.55928469, 1.49499828, 1.46565168, 1.53066532, 1.53229763,
        1.52530853, 1.49032116, 1.44253053, 1.41507583, 1.39659441}}};
  for (const PerRank& run : runs) {
    SCOPED_TRACE(format_text("{} ranks, {} forwards", run.ranks, run.grad_accum));
    const Words words = without_order() + ranks(run.ranks) +
                        Words{"--optimizer",    "sgd",
                              "--lr",           "0.05",
                              "--ignore-index", "2",
                              "--steps",        "12",
                              "--batch-size",   std::to_string(run.batch_size),
                              "--grad-accum",   std::to_string(run.grad_accum)};
    expect_near(losses(words + Words{"--loss-mean", "per_rank"}), run.torch, 2e-5, "loss of step");
    if (run.ranks * run.grad_accum == 1) continue;
    EXPECT_NE(losses(words)[0], losses(words + Words{"--loss-mean", "per_rank"})[0]);
  }
}

}  // namespace trajectory_test
}  // namespace ofsdp
