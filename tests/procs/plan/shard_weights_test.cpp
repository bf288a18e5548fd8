// --shard-weights through the real command: the trained files equal a run with equal shards, byte
// by byte. Holds under every strategy, on one host and on two, with clipping, and through
// checkpoints that cross to other weights and worlds. Every rank's peak is the planned one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"
#include "tests/support/two_launchers.h"

namespace ofsdp {
namespace shard_weights_test {

using testing::HasSubstr;
using Json = nlohmann::json;

Words weights(const std::string& text) { return {"--shard-weights", text}; }

Words limits(int steps) {
  return {"--threads",        "1",   "--timeout", "20",
          "--clip-grad-norm", "0.1", "--steps",   std::to_string(steps)};
}

// Three units, small enough for many runs and large enough that bounds move.
Words train(int steps) {
  return fsdp_run({sample_model("mnist/mnist.onnx"), "--data", "synthetic", "--eval-data", "none",
                   "--optimizer", "adamw", "--min-params", "1000", "--batch-size", "4"}) +
         limits(steps);
}

// As many ranks as weights, under every strategy.
class WeightsTest : public testing::TestWithParam<const char*> {
 protected:
  std::string given() const { return GetParam(); }
  int world() const { return 1 + static_cast<int>(std::ranges::count(given(), ',')); }

  void expect_bits_of_equal(const Words& command) const {
    const CheckpointRuns runs;
    const std::string equal = runs.trained(command + ranks(world()));
    EXPECT_NE(equal, onnx_bytes::content(sample_model("mnist/mnist.onnx")));
    EXPECT_TRUE(runs.trained(command + ranks(world()) + weights(given())) == equal)
        << joined(command, " ");
  }
};

INSTANTIATE_TEST_SUITE_P(Weights, WeightsTest, testing::Values("2,1", "1,20,3", "5,1,1,3"));

TEST_P(WeightsTest, BitsAreThoseOfEqualShardsUnderEveryStrategy) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "zero1", "no_shard"}) {
    expect_bits_of_equal(train(4) + Words{"--strategy", strategy});
  }
}

TEST_P(WeightsTest, BitsAreThoseOfEqualShardsWithOtherOptions) {
  const std::vector<Words> all = {
      {"--param-dtype", "bfloat16", "--grad-accum", "2"},
      {"--state-dtype", "int8"},
      {"--state-dtype", "bfloat16", "--ema", "0.7"},
      {"--optimizer", "muon", "--keep-gathered", "1"},
      {"--param-dtype", "float16", "--freeze", "conv1*", "--lr", "1e-5"},
      {"--deterministic", "across_ranks"},
      {"--ignore", "*bias", "--strategy", "shard_grad_op"}};
  for (const Words& more : all) expect_bits_of_equal(train(3) + more);
}

TEST(HybridWeightsTest, EachGroupIsDividedByTheWeights) {
  const Words command = train(4) + Words{"--shard-size", "2"} + ranks(4);
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    const CheckpointRuns runs;
    const Words hybrid = command + Words{"--strategy", strategy};
    const std::string equal = runs.trained(hybrid);
    for (const char* text : {"3,1", "1,2,1,2"}) {
      EXPECT_TRUE(runs.trained(hybrid + weights(text)) == equal) << strategy << " " << text;
    }
  }
}

// Here units are gathered and sums cross the network.
TEST(HostsWeightsTest, BitsAreThoseOfEqualShards) {
  const std::vector<Words> all = {{"--strategy", "full_shard"},
                                  {"--strategy", "zero1"},
                                  {"--param-dtype", "bfloat16", "--freeze", "fc2*"},
                                  {"--strategy", "hybrid_shard", "--shard-size", "3"}};
  for (const Words& more : all) {
    const CheckpointRuns runs;
    const auto trained = [&](const Words& words) {
      const std::string output = runs / "trained.onnx";
      std::filesystem::remove(output);
      TwoLaunchers both(train(4) + more + words + Words{"--output", output}, 2);
      EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
      EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
      return onnx_bytes::content(output);
    };
    const std::string equal = trained({});
    EXPECT_TRUE(trained(weights("1,3,2")) == equal) << joined(more, " ");
  }
}

TEST(HostsWeightsTest, CopiesOnTwoHostsSumUnequalShards) {
  const CheckpointRuns runs;
  const Words hybrid = train(4) + Words{"--strategy", "hybrid_shard", "--shard-size", "2"};
  const std::string equal = runs.trained(hybrid + ranks(4));
  TwoLaunchers both(hybrid + weights("3,1") + Words{"--output", runs / "two.onnx"}, 2, 2);
  EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
  EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
  EXPECT_TRUE(onnx_bytes::content(runs / "two.onnx") == equal);
}

TEST(ResumedWeightsTest, CheckpointsCrossToOtherWeights) {
  const CheckpointRuns plain;
  const Words two = checkpointed_model() + Words{"--batch-size", "7"} + limits(20) + ranks(2);
  const std::string expected = plain.trained(two);
  for (const std::string type : {"sharded", "full", "local"}) {
    const CheckpointRuns runs;
    const Words saving = two + Words{"--checkpoint-type", type, "--checkpoint-interval", "4step"};
    Program killed(saving + runs.saving() + weights("3,1") +
                   Words{"--steps", "100000000", "--log-interval", "1"});
    ASSERT_TRUE(killed.until_output("step 12/", 30)) << killed.err();
    killed.signal(SIGKILL);
    killed.wait(10);
    for (const std::string& name : runs.checkpoints()) {
      if (name > "step-00000012") std::filesystem::remove_all(runs.dir() + "/" + name);
    }
    EXPECT_EQ(runs.trained(saving + runs.resuming() + weights("1,5")), expected) << type;
    EXPECT_THAT(runs.last().out, HasSubstr("step-000000")) << runs.last().out;
  }
}

// Another number of ranks sums in another order, as without weights.
TEST(ResumedWeightsTest, CheckpointsCrossToOtherWorlds) {
  const CheckpointRuns runs;
  const Words command =
      fsdp_run({sample_model("mnist/mnist.onnx"), "--data", "synthetic", "--eval-data", "none",
                "--optimizer", "adamw", "--min-params", "1000", "--global-batch-size", "12"});
  runs.trained(command + limits(3) + runs.saving() + weights("3,1,2") + ranks(3));
  const std::string kept = runs / "kept";
  std::filesystem::copy(runs.dir(), kept, std::filesystem::copy_options::recursive);
  const Words rest = command + limits(6) + runs.resuming() + ranks(2);
  const std::string equal = runs.trained(rest);
  std::filesystem::remove_all(runs.dir());
  std::filesystem::copy(kept, runs.dir(), std::filesystem::copy_options::recursive);
  EXPECT_TRUE(runs.trained(rest + weights("1,4")) == equal);
}

Json end_row(const Words& command, const CheckpointRuns& runs) {
  const Finished run = Program::run(command + Words{"--metrics", runs / "m.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  return rows_of(runs / "m.jsonl", "end").at(0);
}

TEST(PlannedWeightsTest, EveryRankHoldsWhatThePlanSays) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "zero1"}) {
    for (const Words& more : {Words{}, Words{"--param-dtype", "bfloat16", "--grad-accum", "2"}}) {
      const CheckpointRuns runs;
      Words command = train(3) + more + Words{"--strategy", strategy} + ranks(3) +
                      weights("3,1,2") + runs.saving();
      const Json end = end_row(command, runs);
      EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes")) << strategy;
      command.insert(command.begin() + 1, "plan");
      const Json plan = Json::parse(Program::run(command + Words{"--json"}).out);
      EXPECT_EQ(plan.at("memory").at("peak_bytes_of_ranks"), end.at("peak_bytes")) << strategy;
    }
  }
}

// Parameters, AdamW's states and gradients that wait for the norm: 16 bytes an element. Memory that
// is the same on all ranks cancels in differences. Bounds lie at blocks of 1024 elements, and the
// error does not grow with the units.
TEST(PlannedWeightsTest, PeaksAreInProportion) {
  const auto peaks = [](const std::string& text) {
    const Words command =
        fsdp_run({"plan", sample_model("gpt/gpt.onnx"), "--threads", "1", "--json"}) + ranks(3) +
        weights(text);
    const Json plan = Json::parse(Program::run(command).out);
    int64_t padded = 0;
    for (const Json& unit : plan.at("units")) padded += unit.at("padded_numel").get<int64_t>();
    const auto bytes = plan.at("memory").at("peak_bytes_of_ranks").get<std::vector<double>>();
    return std::pair(bytes, 16.0 * static_cast<double>(padded));
  };
  const auto [bytes, whole] = peaks("5,1,2");
  ASSERT_EQ(bytes.size(), 3u);
  constexpr double kRoom = 3 * 16 * 1024 + 4 * 4096;  // for bounds, and for whole pages
  EXPECT_NEAR(bytes[0] - bytes[1], whole * (5 - 1) / 8, kRoom);
  EXPECT_NEAR(bytes[2] - bytes[1], whole * (2 - 1) / 8, kRoom);
}

TEST(PlannedWeightsTest, EqualHostsHaveEqualPartsWithAuto) {
  const CheckpointRuns runs;
  const std::string equal = runs.trained(train(4) + ranks(2));
  EXPECT_TRUE(runs.trained(train(4) + ranks(2) + weights("auto")) == equal);
  EXPECT_EQ(runs.last().err, "");
}

TEST(WrongWeightsTest, AreOneLine) {
  const std::pair<Words, const char*> wrong[] = {
      {weights("2,1,1") + ranks(2),
       "--shard-weights: expected 2 weights, one for each rank, found 3"},
      {weights("2,0") + ranks(2), "--shard-weights: expected equal, auto or a number above 0"},
      {weights("2,-1") + ranks(2), "--shard-weights: expected equal, auto or a number above 0"},
      {weights("best") + ranks(2), "--shard-weights: expected equal, auto or a number above 0"},
      {weights("2,1,3,1") + ranks(4) + Words{"--strategy", "hybrid_shard", "--shard-size", "2"},
       "--shard-weights: expected the same weights in each group of 2 ranks"},
      {weights("2,1") + ranks(2) + Words{"--optimizer", "lamb"},
       "--shard-weights: --optimizer lamb adds numbers of whole parameters over ranks"},
      {weights("2,1") + ranks(2) + Words{"--optimizer", "adafactor"},
       "--shard-weights: --optimizer adafactor adds numbers of whole parameters over ranks"}};
  for (const auto& [words, line] : wrong) {
    const Finished run = Program::run(checkpointed_model() + Words{"--steps", "1"} + words);
    EXPECT_EQ(run.status, 2) << joined(words, " ");
    EXPECT_THAT(run.err, HasSubstr(line));
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
  }
}

TEST(WrongWeightsTest, NoShardSaysThatItHasNone) {
  const Finished run = Program::run(train(1) + weights("2,1") + ranks(2) +
                                    Words{"--strategy", "no_shard", "--verbose"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out,
              HasSubstr("--shard-weights: no effect, since no_shard has every unit whole"));
}

}  // namespace shard_weights_test
}  // namespace ofsdp
