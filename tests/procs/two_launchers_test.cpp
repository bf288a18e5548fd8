// The real command started once a host, both hosts being this one: the bits equal those on one
// host, where units lie in place, while here they are gathered into slots; a signal to one
// launcher, and a host that does not come back.
#include "tests/support/two_launchers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "kernels/base/status.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace two_launchers_test {

using testing::HasSubstr;

Words train(const std::string& steps) {
  return checkpointed_model() + Words{"--batch-size",   "7", "--threads", "1",
                                      "--log-interval", "1", "--steps",   steps,
                                      "--timeout",      "20"};
}

TEST(TwoLaunchersTest, TrainTheBitsOfOneHost) {
  const CheckpointRuns runs;
  const std::string expected = runs.trained(train("30") + ranks(2));
  TwoLaunchers both(train("30") + Words{"--output", runs / "two.onnx"}, 1);
  EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
  EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
  EXPECT_TRUE(onnx_bytes::content(runs / "two.onnx") == expected);
}

// Any gathered unit, at any time, in any type.
TEST(TwoLaunchersTest, GatheredUnitsAreThoseThatLieInPlace) {
  const std::vector<Words> all = {
      {"--strategy", "shard_grad_op"},
      {"--strategy", "zero1"},
      {"--freeze", "*weight"},
      {"--grad-accum", "2", "--clip-grad-norm", "0.1"},
      {"--optimizer", "lamb"},
      {"--param-dtype", "bfloat16"},
      {"--param-dtype", "float16", "--freeze", "*bias"},
      {"--activation-checkpointing", "unit", "--param-dtype", "bfloat16"},
      {"--backward-prefetch", "post"},
      {"--backward-prefetch", "none", "--forward-prefetch", "off"},
      {"--backward-prefetch", "post", "--forward-prefetch", "off", "--prefetch-depth", "3"}};
  for (const Words& more : all) {
    const CheckpointRuns runs;
    const std::string expected = runs.trained(train("8") + more + ranks(2));
    TwoLaunchers both(train("8") + more + Words{"--output", runs / "two.onnx"}, 1);
    EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
    EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
    EXPECT_TRUE(onnx_bytes::content(runs / "two.onnx") == expected)
        << format_text("{}", joined(more, " "));
  }
}

// A copy on each host: units lie in place there, and the copies sum the gradients.
TEST(TwoLaunchersTest, ACopyOnEachHostTrainsTheBitsOfOneHost) {
  for (const Words& more :
       {Words{"--strategy", "hybrid_shard"},
        Words{"--strategy", "hybrid_shard_zero2", "--param-dtype", "bfloat16"}}) {
    const CheckpointRuns runs;
    const std::string expected =
        runs.trained(train("8") + more + Words{"--shard-size", "2"} + ranks(4));
    TwoLaunchers both(train("8") + more + Words{"--output", runs / "two.onnx"}, 2, 2);
    EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
    EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
    EXPECT_TRUE(onnx_bytes::content(runs / "two.onnx") == expected) << more[1];
  }
}

TEST(TwoLaunchersTest, HoldWhatThePlanOfTwoHostsSays) {
  for (const int each : {1, 2}) {
    const CheckpointRuns runs;
    Words words = train("2") + Words{"--strategy", "hybrid_shard"};
    TwoLaunchers both(words + Words{"--metrics", runs / "metrics.jsonl"}, each, each);
    EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
    EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
    words.insert(words.begin() + 1, "plan");
    const Finished plan = Program::run(words + ranks(each) + Words{"--nnodes", "2", "--json"});
    const auto planned = nlohmann::json::parse(plan.out).at("memory").at("peak_bytes");
    for (const auto& held : rows_of(runs / "metrics.jsonl", "end").at(0).at("peak_bytes")) {
      EXPECT_EQ(held, planned);
    }
  }
}

TEST(TwoLaunchersTest, ASignalToOneStopsAllAfterTheSameUpdate) {
  for (const bool to_first : {true, false}) {
    const CheckpointRuns runs;
    const Words endless = train("100000000") + runs.saving() +
                          Words{"--checkpoint-interval", "100000000step", "--max-restarts", "1"};
    TwoLaunchers both(endless, 1);
    ASSERT_TRUE(both.first().until_output("step 20/", 30)) << both.first().err();
    (to_first ? both.first() : both.second()).signal(SIGTERM);
    EXPECT_EQ(both.first().wait(20).status, 128 + SIGTERM);
    EXPECT_EQ(both.second().wait(20).status, 128 + SIGTERM);
    const std::vector<std::string> lines = lines_of(both.first().err() + both.second().err());
    ASSERT_EQ(lines.size(), 1u) << joined(lines, "\n");
    EXPECT_THAT(lines[0], HasSubstr("stopped at update "));
    EXPECT_EQ(runs.checkpoints().size(), 1u);
  }
}

// The second host is killed for good; the first runs on.
Finished without_second(const CheckpointRuns& runs, int ranks_of_first) {
  const Words words = train("60") + runs.saving() +
                      Words{"--min-nodes",
                            "1",
                            "--max-restarts",
                            "1",
                            "--no-shuffle",
                            "--metrics",
                            runs / "metrics.jsonl",
                            "--output",
                            runs / "trained.onnx",
                            "--checkpoint-interval",
                            "10step",
                            "--checkpoint-sync"};
  TwoLaunchers both(words, ranks_of_first);
  EXPECT_TRUE(both.first().until_output("step 15/", 30)) << both.first().err();
  both.second().signal(SIGKILL);
  return both.first().wait(60);
}

TEST(TwoLaunchersTest, FewerRanksKeepTheGlobalBatch) {
  const CheckpointRuns runs;
  runs.trained(train("60") + ranks(2) + Words{"--no-shuffle", "--metrics", runs / "whole.jsonl"});
  const Finished run = without_second(runs, 1);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("restart 1 of 1: from the latest checkpoint in " + runs.dir()));
  const auto expected = losses_by_step(runs / "whole.jsonl");
  for (const auto& [step, loss] : losses_by_step(runs / "metrics.jsonl")) {
    EXPECT_NEAR(loss, expected[static_cast<size_t>(step - 1)].second, 1e-5 * loss) << step;
  }
}

TEST(TwoLaunchersTest, AGlobalBatchThatFewerRanksCannotShareIsRefused) {
  const CheckpointRuns runs;
  const Finished run = without_second(runs, 2);
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("fsdp-run: restart with 2 ranks: --global-batch-size 21 (3 ranks "
                                 "at first) is not a multiple of 2\n"));
}

// --- ranks with different settings do not start: they name the first different step ---

// A rank as torchrun starts it; the port keeps runs at the same time apart.
Start as_rank(int rank) {
  const int port = 20000 + static_cast<int>(getpid() % 20000);
  Start start;
  start.environment = {"MASTER_ADDR=127.0.0.1",
                       format_text("MASTER_PORT={}", port),
                       "WORLD_SIZE=2",
                       "LOCAL_WORLD_SIZE=2",
                       format_text("RANK={}", rank),
                       format_text("LOCAL_RANK={}", rank)};
  return start;
}

// Both ranks' messages; rank 1 has `more`.
std::string said_with(const Words& more) {
  const Words command = mlp() + Words{"--min-params", "1000", "--steps", "2", "--threads", "1"};
  Program first(command, as_rank(0));
  Program second(command + more, as_rank(1));
  EXPECT_EQ(first.wait(60).status, 1);
  EXPECT_EQ(second.wait(60).status, 1);
  return first.err() + second.err();
}

TEST(Agreement, NamesTheFirstStepThatDiffers) {
  const std::string clip = said_with({"--clip-grad-norm", "1"});
  EXPECT_NE(clip.find("the schedules of ranks 0 and 1 differ, first in collective step 4: "
                      "ReduceUpdate u2 of 256 elements on rank 0, Reduce u2 of 256 elements on "
                      "rank 1"),
            std::string::npos)
      << clip;
  EXPECT_EQ(lines_of(clip).size(), 1u) << "once a run, not once a rank: " << clip;
}

TEST(Agreement, NamesUnitsOfAnotherSize) {
  const std::string units = said_with({"--min-params", "100000"});
  EXPECT_NE(units.find("first in collective step 0: Acquire u2 of 256 elements on rank 0, Acquire "
                       "u0 of 4736 elements on rank 1"),
            std::string::npos)
      << units;
}

}  // namespace two_launchers_test
}  // namespace ofsdp
