// Optimizer states in bfloat16 and 8 bits: the same bits under every strategy, on any number of
// ranks with across_ranks, after a resume; as large as planned; the loss as in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace state_dtype_test {

using testing::HasSubstr;

class StateDTypes : public testing::TestWithParam<std::string> {
 protected:
  Words stored(const Words& optimizer) const {
    return checkpointed_model() + optimizer + Words{"--state-dtype", GetParam()};
  }
};

INSTANTIATE_TEST_SUITE_P(All, StateDTypes, testing::Values("bfloat16", "int8"),
                         [](const auto& info) { return info.param; });

const Words kAdamW{"--optimizer", "adamw", "--lr", "0.01"};
const Words kSgd{"--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9"};
const Words kLamb{"--optimizer", "lamb", "--lr", "0.02", "--ema", "0.5"};
// States that only some parameters have, matrices, and norms for a group.
const Words kMixed{"--optimizer",
                   "muon",
                   "--lr",
                   "0.02",
                   "--group",
                   "fc2*:optimizer=rmsprop,lr=0.001",
                   "--group",
                   "head*:optimizer=lamb,lr=0.01",
                   "--clip-grad-norm",
                   "0.5"};

TEST_P(StateDTypes, NoStrategyChangesABit) {
  const CheckpointRuns runs;
  for (const Words& optimizer : {kAdamW, kSgd, kLamb, kMixed}) {
    const Words words = stored(optimizer) + Words{"--batch-size", "7", "--steps", "6"} + ranks(3);
    const std::string first = runs.trained(words);
    for (const char* strategy : {"shard_grad_op", "zero1", "no_shard"}) {
      const bool same = runs.trained(words + Words{"--strategy", strategy}) == first;
      EXPECT_TRUE(same) << strategy << " " << optimizer[1];
    }
    EXPECT_FALSE(runs.trained(words + Words{"--state-dtype", "float32"}) == first) << "no effect";
  }
}

// One unit, so that shards cut several parameters in the middle.
TEST_P(StateDTypes, NoNumberOfRanksChangesABitOfAcrossRanks) {
  const CheckpointRuns runs;
  for (const Words& optimizer : {kAdamW, kMixed}) {
    const Words words =
        stored(optimizer) + Words{"--wrap",  "none", "--global-batch-size", "21",
                                  "--steps", "5",    "--deterministic",     "across_ranks"};
    const std::string first = runs.trained(words);
    for (const auto& [world, strategy] : std::vector<std::pair<int, std::string>>{
             {2, "full_shard"}, {3, "full_shard"}, {4, "zero1"}, {3, "no_shard"}}) {
      const bool same = runs.trained(words + ranks(world) + Words{"--strategy", strategy}) == first;
      EXPECT_TRUE(same) << strategy << " on " << world << " " << optimizer[1];
    }
  }
}

TEST_P(StateDTypes, ResumesWithItsBitsFromEveryTypeOfCheckpoint) {
  for (const Words& optimizer : {kAdamW, kMixed}) {
    const Words words = stored(optimizer) + Words{"--batch-size", "7"} + ranks(2);
    const CheckpointRuns plain;
    const std::string expected = plain.trained(words + Words{"--steps", "9"});
    for (const Words& how : {Words{"--checkpoint-type", "sharded"},
                             Words{"--checkpoint-type", "full", "--checkpoint-interval", "2step"},
                             Words{"--checkpoint-type", "local", "--checkpoint-interval", "2step"},
                             Words{"--checkpoint-sync"}}) {
      const CheckpointRuns runs;
      runs.trained(words + how + runs.saving() + Words{"--steps", "5"});
      const bool same = runs.trained(words + runs.resuming() + Words{"--steps", "9"}) == expected;
      EXPECT_TRUE(same) << how.back() << " " << optimizer[1];
    }
  }
}

// A run writes the last save from the states, earlier saves from a copy.
TEST_P(StateDTypes, ResumesFromACopyOnOtherRanksWithItsBits) {
  const Words words =
      stored(kAdamW) + Words{"--wrap",          "none",         "--global-batch-size",   "21",
                             "--deterministic", "across_ranks", "--checkpoint-interval", "3step"};
  const CheckpointRuns plain;
  const std::string expected = plain.trained(words + Words{"--steps", "8"});
  const CheckpointRuns runs;
  runs.trained(words + runs.saving() + ranks(3) + Words{"--steps", "5"});
  const Words more =
      words + Words{"--steps", "8", "--resume", runs.dir() + "/step-00000003"} + ranks(2);
  EXPECT_TRUE(runs.trained(more) == expected);
}

TEST_P(StateDTypes, PeakIsThePlanToTheByte) {
  const CheckpointRuns runs;
  const std::string metrics = runs / "m.jsonl";
  for (const Words& how :
       {Words{}, runs.saving(), runs.saving() + Words{"--checkpoint-sync"},
        runs.saving() + Words{"--strategy", "no_shard", "--checkpoint-type", "full"}}) {
    runs.trained(stored(kMixed) + ranks(3) + how +
                 Words{"--batch-size", "7", "--steps", "4", "--metrics", metrics});
    std::filesystem::remove_all(runs.dir());
    const auto end = rows_of(metrics, "end").at(0);
    EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes"));
  }
}

struct Losses {
  double untrained = 0, trained = 0;
};

Losses losses_of(const CheckpointRuns& runs, const Words& words) {
  const std::string metrics = runs / "m.jsonl";
  runs.trained(words + Words{"--batch-size", "8", "--epochs", "20", "--eval-data",
                             fixture("mlp/data"), "--eval-interval", "20epoch", "--metrics",
                             metrics});
  return {losses_by_step(metrics).front().second, rows_of(metrics, "eval").back().at("loss")};
}

// The loss on the training data, at the end.
TEST_P(StateDTypes, TrainsAsFloat32Does) {
  const CheckpointRuns runs;
  for (const Words& optimizer : {Words{"--optimizer", "adamw", "--lr", "0.002"},
                                 Words{"--optimizer", "sgd", "--lr", "0.02", "--momentum", "0.9"},
                                 Words{"--optimizer", "rmsprop", "--lr", "0.001"}}) {
    const auto [untrained, full] = losses_of(runs, checkpointed_model() + optimizer);
    const double few = losses_of(runs, stored(optimizer)).trained;
    std::printf("%s %s: untrained %.4f, float32 %.4f, here %.4f\n", GetParam().c_str(),
                optimizer[1].c_str(), untrained, full, few);
    EXPECT_LT(full, 0.7 * untrained);
    EXPECT_NEAR(few, full, 0.03 * untrained) << optimizer[1];
  }
}

TEST_P(StateDTypes, AnyCheckpointGoesOnInAnyType) {
  const CheckpointRuns runs;
  const std::string metrics = runs / "m.jsonl";
  const Words words =
      checkpointed_model() + kAdamW + Words{"--batch-size", "7", "--metrics", metrics} + ranks(2);
  runs.trained(words + Words{"--steps", "7"});
  const auto expected = losses_by_step(metrics);
  runs.trained(words + runs.saving() + Words{"--steps", "3"});
  runs.trained(words + runs.resuming() + Words{"--steps", "5", "--state-dtype", GetParam()});
  runs.trained(words + runs.resuming() + Words{"--steps", "7"});
  const auto losses = losses_by_step(metrics);
  ASSERT_EQ(losses.back().first, 7);
  EXPECT_NEAR(losses.back().second, expected.back().second, 0.05 * expected.back().second);
}

TEST_P(StateDTypes, DevicesGiveTheBitsOfTheCpu) {
  const Words small = small_mlp() + Words{"--state-dtype", GetParam()};
  for (const Words& more :
       {Words{}, Words{"--optimizer", "lion"} + ranks(2),
        Words{"--param-dtype", "bfloat16", "--clip-grad-norm", "0.5"} + ranks(3), kLamb,
        kLamb + ranks(3), kMixed + ranks(2), Words{"--cpu-offload", "optimizer"}}) {
    SCOPED_TRACE(testing::PrintToString(more));
    expect_bits_of_the_cpu(small + more);
    expect_near_losses(on_cpu(small + more), run_on_device(OFSDP_EMULATED_DEVICE, small + more),
                       1e-2);
  }
}

TEST_P(StateDTypes, AreRefusedWhereStatesAreOfAnotherKind) {
  const auto refused = [&](const Words& words) {
    const Finished run = Program::run(words + Words{"--state-dtype", GetParam(), "--steps", "1"});
    EXPECT_EQ(run.status, 2) << run.out;
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
    return run.err;
  };
  const std::string flag = "--state-dtype " + GetParam() + ": expected ";
  EXPECT_THAT(refused(checkpointed_model() + Words{"--optimizer", "adafactor"}),
              HasSubstr(flag + "an optimizer with a state an element, found adafactor"));
  EXPECT_THAT(refused(checkpointed_model() + Words{"--group", "fc1*:optimizer=adafactor"}),
              HasSubstr(flag + "an optimizer with a state an element, found adafactor"));
  const std::string model = fixture("training_info/momentum.onnx");
  EXPECT_THAT(refused(fsdp_run({model, "--data", fixture("training_info/data")})),
              HasSubstr(flag + "an --optimizer, found the training_info of " + model));
  const std::string plugin = OFSDP_EXAMPLE_PLUGINS "/liblion.so";
  if (!std::filesystem::exists(plugin)) GTEST_SKIP() << "built without plug-ins";
  EXPECT_THAT(
      refused(checkpointed_model() + Words{"--plugin", plugin, "--optimizer", "plugin:lion"}),
      HasSubstr(flag + "an optimizer that is built in, found plugin:lion"));
}

struct PlannedStates {
  int64_t bytes = 0;     // in the optimizer's states
  int64_t elements = 0;  // in the units, with their gaps
};

PlannedStates planned_states(const std::string& dtype) {
  Words words = checkpointed_model();
  words.insert(words.begin() + 1, "plan");
  const Finished run =
      Program::run(words + Words{"--state-dtype", dtype, "--json", "--steps", "1"});
  EXPECT_EQ(run.status, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << run.out;
  EXPECT_EQ(json.at("dtypes").at("optimizer_state"), dtype);
  PlannedStates planned{json.at("memory").at("at_peak").at("optimizer_state")};
  for (const auto& unit : json.at("units")) {
    planned.elements += unit.at("padded_numel").get<int64_t>();
  }
  return planned;
}

TEST(StateDType, PlansSoManyBytesAnElement) {
  const PlannedStates full = planned_states("float32");
  EXPECT_EQ(full.bytes, 8 * full.elements);
  const PlannedStates half = planned_states("bfloat16");
  EXPECT_EQ(half.elements, full.elements);
  EXPECT_EQ(half.bytes, 4 * half.elements);
  const PlannedStates few = planned_states("int8");
  EXPECT_EQ(few.elements % 256, 0);
  EXPECT_EQ(few.bytes, 2 * few.elements + 2 * 4 * (few.elements / 256));
}

}  // namespace state_dtype_test
}  // namespace ofsdp
