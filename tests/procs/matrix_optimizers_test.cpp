// Optimizers of whole matrices on shards: the same bits under every strategy, on any number of
// ranks with across_ranks, after a resume; states as large as planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/checked_runs.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace matrix_optimizers_test {

using testing::HasSubstr;

constexpr const char* kOtherStrategies[] = {"shard_grad_op", "zero1", "no_shard"};

Words trained_by(const std::string& optimizer) {
  return checkpointed_model() +
         Words{"--optimizer", optimizer, "--lr", "0.02", "--weight-decay", "0.1"};
}

class MatrixOptimizers : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, MatrixOptimizers, testing::Values("adafactor", "muon"),
                         [](const auto& info) { return info.param; });

// A clipped run keeps unscaled gradients; one group has another matrix optimizer.
TEST_P(MatrixOptimizers, NoStrategyChangesABit) {
  const CheckpointRuns runs;
  const std::string other = GetParam() == "muon" ? "adafactor" : "muon";
  const Words plain = trained_by(GetParam()) + Words{"--batch-size", "7", "--steps", "6"};
  const Words mixed = plain + Words{"--clip-grad-norm",        "0.3",    "--ema", "0.5", "--group",
                                    "fc2*:optimizer=" + other, "--wrap", "none"};
  for (const auto& [world, words] :
       std::vector<std::pair<int, Words>>{{3, plain}, {4, plain}, {3, mixed}}) {
    const std::string first = runs.trained(words + ranks(world));
    for (const char* strategy : kOtherStrategies) {
      const bool same = runs.trained(words + ranks(world) + Words{"--strategy", strategy}) == first;
      EXPECT_TRUE(same) << strategy << " on " << world;
    }
  }
}

TEST_P(MatrixOptimizers, NoNumberOfRanksChangesABitOfAcrossRanks) {
  const CheckpointRuns runs;
  const Words words =
      trained_by(GetParam()) +
      Words{"--global-batch-size", "21", "--steps", "5", "--deterministic", "across_ranks"};
  const std::string first = runs.trained(words);
  for (const int world : {2, 3}) {
    for (const char* strategy : {"full_shard", "no_shard"}) {
      const bool same = runs.trained(words + ranks(world) + Words{"--strategy", strategy}) == first;
      EXPECT_TRUE(same) << strategy << " on " << world;
    }
  }
}

TEST_P(MatrixOptimizers, ResumesWithItsBitsFromEveryTypeOfCheckpoint) {
  const Words words = trained_by(GetParam()) + Words{"--batch-size", "7"} + ranks(2);
  const CheckpointRuns plain;
  const std::string expected = plain.trained(words + Words{"--steps", "9"});
  for (const char* type : {"sharded", "full", "local"}) {
    const CheckpointRuns runs;
    const Words saving = words + Words{"--checkpoint-type", type};
    runs.trained(saving + runs.saving() + Words{"--steps", "5"});
    EXPECT_TRUE(runs.trained(saving + runs.resuming() + Words{"--steps", "9"}) == expected) << type;
  }
}

TEST_P(MatrixOptimizers, ResumesOnAnotherNumberOfRanks) {
  const CheckpointRuns runs;
  const Words words = trained_by(GetParam());
  const std::string metrics = runs / "m.jsonl", again = runs / "again.jsonl";
  runs.trained(words + Words{"--batch-size", "12", "--steps", "10", "--metrics", metrics});
  const auto expected = losses_by_step(metrics);
  runs.trained(words + Words{"--batch-size", "4", "--steps", "5", "--metrics", again} + ranks(3) +
               runs.saving());
  runs.trained(words + Words{"--batch-size", "6", "--steps", "10", "--metrics", again} + ranks(2) +
               Words{"--strategy", "zero1"} + runs.resuming());
  const auto losses = losses_by_step(again);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i].second, expected[i].second, 2e-5 * expected[i].second) << i;
  }
}

TEST_P(MatrixOptimizers, PeakIsThePlanToTheByte) {
  const CheckpointRuns runs;
  const std::string metrics = runs / "m.jsonl";
  for (const char* strategy : {"full_shard", "zero1", "no_shard"}) {
    runs.trained(trained_by(GetParam()) + ranks(3) + runs.saving() +
                 Words{"--strategy", strategy, "--batch-size", "7", "--steps", "4", "--metrics",
                       metrics, "--overwrite-checkpoints"});
    const auto end = rows_of(metrics, "end").at(0);
    EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes")) << strategy;
  }
}

std::vector<NamedRun> device_runs() {
  const Words adafactor =
      small_mlp(3) + Words{"--optimizer", "adafactor", "--lr", "0.02", "--weight-decay", "0.1"};
  const Words muon = small_mlp(3) + Words{"--optimizer", "muon", "--lr", "0.02"};
  const Words bfloat16{"--param-dtype", "bfloat16"};
  return {{"full_shard", adafactor},
          {"lone", small_mlp(1) + Words{"--optimizer", "adafactor", "--clip-grad-norm", "0.1"}},
          {"shard_grad_op", adafactor + Words{"--strategy", "shard_grad_op"}},
          {"zero1", adafactor + bfloat16 + Words{"--strategy", "zero1", "--grad-accum", "2"}},
          {"no_shard", adafactor + Words{"--strategy", "no_shard", "--clip-grad-norm", "0.3"}},
          {"float16", adafactor + Words{"--param-dtype", "float16"}},
          {"one_unit", adafactor + Words{"--wrap", "none"}},
          {"muon", muon},
          {"muon_lone", small_mlp(1) + Words{"--optimizer", "muon", "--clip-grad-norm", "0.1"}},
          {"muon_zero1", muon + bfloat16 + Words{"--strategy", "zero1", "--grad-accum", "2"}},
          {"muon_no_shard", muon + Words{"--strategy", "no_shard", "--momentum", "0"}},
          {"muon_float16", muon + Words{"--param-dtype", "float16", "--wrap", "none"}},
          {"muon_across_ranks", muon + Words{"--deterministic", "across_ranks"}}};
}

class MatrixOptimizersOnDevices : public testing::TestWithParam<NamedRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, MatrixOptimizersOnDevices, testing::ValuesIn(device_runs()),
                         test_name);

TEST_P(MatrixOptimizersOnDevices, GiveTheBitsOfTheCpu) {
  const Trained cpu = on_cpu(GetParam().command);
  for (const int seed : {1, 2}) {
    SCOPED_TRACE(seed);
    expect_same_bits(cpu, on_counting_device(GetParam().command, {}, seed));
  }
  expect_same_bits(cpu, on_counting_device(GetParam().command, {"--cuda-graph", "off"}));
}

// The CUDA library's kernels and products, with the library's host code.
TEST(MatrixOptimizersOnCuda, GiveTheLossesOfTheCpu) {
  for (const char* optimizer : {"adafactor", "muon"}) {
    SCOPED_TRACE(optimizer);
    expect_rules_kept(small_mlp(1) + Words{"--optimizer", optimizer, "--clip-grad-norm", "0.1"},
                      {});
  }
}

TEST_P(MatrixOptimizers, GoesOnFromWhatTheCpuSavedAndTheOtherWayRound) {
  expect_checkpoints_of_both(small_mlp(2) + Words{"--optimizer", GetParam()}, 6, 11);
}

// Planned bytes of states for the perceptron's three weights, on one rank.
int64_t planned_states(const Words& more) {
  const CheckpointRuns runs;
  Words words = checkpointed_model();
  words.insert(words.begin() + 1, "plan");
  const Finished run = Program::run(words + more + Words{"--json", "--steps", "1"});
  EXPECT_EQ(run.status, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << run.out;
  return json.at("memory").at("at_peak").at("optimizer_state");
}

TEST(StatesOfMatrices, AreAsManyAsTheOptimizerHas) {
  const int64_t adam = planned_states({"--optimizer", "adam"});
  const int64_t adafactor = planned_states({"--optimizer", "adafactor"});
  const int64_t muon = planned_states({"--optimizer", "muon"});
  EXPECT_LT(adafactor, adam / 8);
  EXPECT_LT(muon, adam * 3 / 4);
}

// Each tensor's states, from a checkpoint's manifest.
std::multimap<std::string, std::string> states_by_tensor(const Words& words) {
  const CheckpointRuns runs;
  runs.trained(words + runs.saving() + Words{"--steps", "1", "--optimizer", "muon"});
  std::multimap<std::string, std::string> states;
  const auto manifest = runs.manifest("step-00000001");
  for (const auto& entry : manifest.at("state_tensors")) states.emplace(entry[1], entry[0]);
  return states;
}

bool muon_takes(const std::multimap<std::string, std::string>& states, const std::string& tensor) {
  const auto found = states.find(tensor);
  return found != states.end() && found->second == "momentum_buffer";
}

TEST(Muon, TakesMatricesButForTablesAndTheHead) {
  const auto plain = states_by_tensor(checkpointed_model());
  EXPECT_TRUE(muon_takes(plain, "fc1.weight"));
  EXPECT_FALSE(muon_takes(plain, "fc1.bias"));
  EXPECT_FALSE(muon_takes(plain, "head.weight"));
  EXPECT_EQ(plain.count("head.weight"), 2u) << "the averages of adamw";
  const auto named =
      states_by_tensor(checkpointed_model() + Words{"--group", "head.weight:optimizer=muon"});
  EXPECT_TRUE(muon_takes(named, "head.weight"));
  const auto llama =
      states_by_tensor(fsdp_run({OFSDP_SOURCE_DIR "/tests/oracle/cases/llama/legacy.onnx", "--loss",
                                 "cross_entropy", "--data", "synthetic"}));
  EXPECT_FALSE(muon_takes(llama, "e.weight")) << "a table";
  for (const char* taken : {"q.weight", "gate.weight", "down.weight"}) {
    EXPECT_TRUE(muon_takes(llama, taken)) << taken;
  }
}

Words plan_of_muon() {
  Words words = checkpointed_model() + ranks(2);
  words.insert(words.begin() + 1, "plan");
  return words + Words{"--optimizer", "muon", "--group", "head.weight:optimizer=muon"};
}

// By shapes: 5 iterations with three products, 2 numel side twice and 2 side^3.
TEST(Muon, ThePlanSaysWhichRankTakesWhichMatrix) {
  const Finished run = Program::run(plan_of_muon() + Words{"--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto report = nlohmann::json::parse(run.out);
  const auto& dealt = report.at("newton_schulz");
  std::vector<double> flops(2);
  std::vector<int64_t> bytes(2);
  for (const auto& matrix : dealt.at("matrices")) {
    const double rows = matrix.at("rows"), columns = matrix.at("columns");
    const double side = std::min(rows, columns);
    const double expected = 5 * (2 * 2 * side * rows * columns + 2 * side * side * side);
    EXPECT_DOUBLE_EQ(matrix.at("flops").get<double>(), expected);
    ASSERT_EQ(matrix.at("ranks").size(), 1u);
    const size_t rank = matrix.at("ranks")[0];
    ASSERT_LT(rank, 2u);
    flops[rank] += expected;
    bytes[rank] += static_cast<int64_t>(4 * rows * columns);
  }
  EXPECT_EQ(dealt.at("matrices").size(), 3u);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_GT(flops[rank], 0) << "each has some";
    EXPECT_DOUBLE_EQ(dealt.at("ranks")[rank].at("flops").get<double>(), flops[rank]);
    EXPECT_EQ(dealt.at("ranks")[rank].at("bytes").get<int64_t>(), bytes[rank]);
  }
}

// The ranks wait for the one with the largest part of a unit.
TEST(Muon, ThePredictedUpdateHasNewtonSchulz) {
  const Finished run = Program::run(plan_of_muon() + Words{"--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto report = nlohmann::json::parse(run.out);
  const double rate = report.at("machine").at("product_gflops").get<double>() * 1e9;
  EXPECT_GT(rate, 0);
  std::map<int, std::map<int, double>> by_unit;
  for (const auto& matrix : report.at("newton_schulz").at("matrices")) {
    by_unit[matrix.at("unit")][matrix.at("ranks")[0]] += matrix.at("flops").get<double>();
  }
  size_t steps = 0;
  for (const auto& step : report.at("programs")[0].at("schedule")) {
    if (step.at("step") != "Orthogonalize") continue;
    double most = 0;
    for (const auto& [rank, flops] : by_unit.at(step.at("unit"))) most = std::max(most, flops);
    const auto& time = step.at("compute");
    const double ms = time.at("end_ms").get<double>() - time.at("begin_ms").get<double>();
    EXPECT_GE(ms, 0.99 * most / rate * 1e3) << step;
    ++steps;
  }
  EXPECT_EQ(steps, by_unit.size());
}

TEST(Muon, TablesOfThePlanAndOfAVerboseRun) {
  Words verbose = plan_of_muon();
  verbose.erase(verbose.begin() + 1);
  const Words plan = plan_of_muon() + Words{"--verbose"};
  for (const Words& words : {plan, verbose + Words{"--steps", "1", "--verbose", "on"}}) {
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, testing::ContainsRegex("fc1.weight +u[0-9] +[0-9]+ x [0-9]+ .* [01]\n"));
    EXPECT_THAT(run.out, testing::ContainsRegex("rank +matrices +size +GFLOP\n +0 "));
  }
  EXPECT_THAT(Program::run(plan).out, HasSubstr("Newton-Schulz "));
  EXPECT_THAT(Program::run(plan).out, HasSubstr(" GFLOP/s"));
}

TEST(StatesOfMatrices, ACheckpointOfOtherGroupsIsRefused) {
  const CheckpointRuns runs;
  const Words words = checkpointed_model() + Words{"--batch-size", "7", "--optimizer", "adafactor"};
  runs.trained(words + Words{"--steps", "2", "--group", "fc1*:optimizer=adam"} + runs.saving());
  const Finished run = Program::run(
      words + Words{"--steps", "4", "--group", "fc2*:optimizer=adam"} + runs.resuming());
  EXPECT_EQ(run.status, 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("which this run's optimizer of it needs"));
}

}  // namespace matrix_optimizers_test
}  // namespace ofsdp
