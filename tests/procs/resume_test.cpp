// A run that ended and was resumed equals an uninterrupted run: the trained file, byte for byte,
// with the same ranks and strategy; the losses with others. And the message of a run that a signal
// stops, and how `resume` continues the run in a folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace resume_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kStrategies[] = {"full_shard", "shard_grad_op", "no_shard"};
constexpr const char* kTypes[] = {"sharded", "full", "local"};

Words steps(int count) { return {"--steps", std::to_string(count)}; }
Words batch(int count) { return {"--batch-size", std::to_string(count)}; }

class ResumeTest : public testing::TestWithParam<int> {
 protected:
  Words words() const { return checkpointed_model() + batch(7) + ranks(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeTest, testing::Values(1, 2, 3));

TEST_P(ResumeTest, SameBitsAsWithoutTheBreak) {
  for (const std::string strategy : kStrategies) {
    const Words run = words() + Words{"--strategy", strategy};
    const CheckpointRuns plain;
    const std::string expected = plain.trained(run + steps(30));
    for (const std::string type : kTypes) {
      SCOPED_TRACE(strategy + " " + type);
      const CheckpointRuns runs;
      const Words saving = run + Words{"--checkpoint-type", type, "--checkpoint-interval", "4step"};
      runs.trained(saving + runs.saving() + steps(17));
      EXPECT_THAT(runs.checkpoints(), ElementsAre("step-00000016", "step-00000017"));
      EXPECT_EQ(runs.trained(saving + runs.resuming() + steps(30)), expected);
      EXPECT_THAT(runs.last().out, HasSubstr("step-00000017"));
      EXPECT_EQ(runs.last().err, "");
    }
  }
}

TEST_P(ResumeTest, SameBitsWhileItWaitsForTheDisk) {
  const CheckpointRuns runs;
  const std::string expected = runs.trained(words() + steps(20));
  const Words saving = words() + Words{"--checkpoint-sync", "--checkpoint-interval", "1step"};
  EXPECT_EQ(runs.trained(saving + runs.saving() + steps(20)), expected) << "saving changes nothing";
  std::filesystem::remove_all(runs.dir());
  runs.trained(saving + runs.saving() + steps(9));
  EXPECT_EQ(runs.trained(saving + runs.resuming() + steps(20)), expected);
}

TEST_P(ResumeTest, SameBitsWithAccumulationClippingAndASchedule) {
  const Words run = words() + Words{"--grad-accum",  "2",      "--clip-grad-norm", "0.5",
                                    "--lr-schedule", "cosine", "--warmup-steps",   "5"};
  const CheckpointRuns runs;
  // The schedule covers the whole run, so a signal ends the first part.
  const Words whole = run + Words{"--epochs", "3"};
  const std::string expected = runs.trained(whole);
  for (const std::string interval : {"3step", "1epoch"}) {
    std::filesystem::remove_all(runs.dir());
    runs.trained(whole + runs.saving() + Words{"--checkpoint-interval", interval});
    const auto names = runs.checkpoints();
    ASSERT_EQ(names.size(), 2u);
    std::filesystem::remove_all(runs.dir() + "/" + names[1]);  // as if it ended before the last
    EXPECT_EQ(runs.trained(whole + runs.resuming()), expected) << interval;
  }
}

// Ranks and strategies change on the way; the global batch stays.
TEST(ResumeElsewhereTest, LossesGoOn) {
  const CheckpointRuns plain;
  const std::string metrics = plain / "m.jsonl";
  plain.trained(checkpointed_model() + batch(12) + steps(24) + Words{"--metrics", metrics});
  const auto expected = losses_by_step(metrics);
  ASSERT_EQ(expected.size(), 24u);
  const std::vector<std::pair<int, std::string>> shapes = {
      {1, "full_shard"}, {2, "full_shard"}, {3, "no_shard"}, {4, "shard_grad_op"}};
  for (const auto& [from, first] : shapes) {
    for (const auto& [to, then] : shapes) {
      SCOPED_TRACE(format_text("{} {} to {} {}", from, first, to, then));
      const CheckpointRuns runs;
      const std::string found = runs / "m.jsonl";
      const Words part{"--metrics", found};
      runs.trained(checkpointed_model() + batch(12 / from) + ranks(from) + steps(11) + part +
                   runs.saving() + Words{"--strategy", first});
      runs.trained(checkpointed_model() + batch(12 / to) + ranks(to) + steps(24) + part +
                   runs.resuming() + Words{"--strategy", then, "--wrap", "none"});
      const auto losses = losses_by_step(found);
      ASSERT_EQ(losses.size(), expected.size());
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_EQ(losses[i].first, expected[i].first);
        EXPECT_NEAR(losses[i].second, expected[i].second, 1e-5 * expected[i].second) << i;
      }
    }
  }
}

TEST(ResumedRunTest, AFinishedRunOnlyWritesItsOutput) {
  const CheckpointRuns runs;
  const std::string metrics = runs / "m.jsonl";
  const Words run = checkpointed_model() + batch(7) + ranks(2) + Words{"--metrics", metrics};
  const std::string expected = runs.trained(run + steps(6) + runs.saving());
  const std::string rows = onnx_bytes::content(metrics);
  const auto names = runs.checkpoints();
  EXPECT_EQ(runs.trained(run + steps(6) + runs.resuming()), expected);
  EXPECT_EQ(onnx_bytes::content(metrics), rows);
  EXPECT_EQ(runs.checkpoints(), names);
}

TEST(ResumedRunTest, WithoutACheckpointItStartsAtTheBeginningAndSaysSo) {
  const CheckpointRuns runs;
  const Words run = checkpointed_model() + batch(7) + ranks(2) + steps(6);
  const std::string expected = runs.trained(run);
  std::filesystem::create_directories(runs.dir() + "/step-00000003");  // without a manifest
  EXPECT_EQ(runs.trained(run + runs.resuming()), expected);
  EXPECT_THAT(runs.last().out, HasSubstr("starting from the beginning"));
}

// Another global batch: the rest of the epoch is used once, then epochs are whole again.
TEST(ResumedRunTest, AnotherGlobalBatchFinishesTheEpoch) {
  const CheckpointRuns runs;  // 192 samples
  const Words run = checkpointed_model() + Words{"--no-shuffle", "--checkpoint-interval", "1step"};
  runs.trained(run + batch(10) + steps(5) + runs.saving());
  EXPECT_EQ(runs.manifest("step-00000005")["sampler"]["sample"], 50);
  runs.trained(run + batch(20) + ranks(2) + Words{"--epochs", "2"} + runs.resuming());
  // 142 samples by 40: 4 updates, then 5 in the next epoch.
  EXPECT_THAT(runs.checkpoints(), ElementsAre("step-00000013", "step-00000014"));
}

TEST(ResumedRunTest, OtherRowsAreTold) {
  const ModelFolder folder;
  const auto run = [&](int rows, int steps, const Words& more) {
    const auto count = static_cast<size_t>(rows);
    folder.write("data/x.npy", testing_data::npy("<f4", format_text("({}, 4)", rows),
                                                 std::vector<float>(4 * count, 0.5f)));
    folder.write("data/labels.npy",
                 testing_data::npy("<i8", format_text("({},)", rows), std::vector<int64_t>(count)));
    return Program::run(
        fsdp_run({folder.model(), "--data", folder / "data", "--loss", "cross_entropy",
                  "--batch-size", "4", "--checkpoint-dir", folder / "ck", "--checkpoint-interval",
                  "1step", "--steps", std::to_string(steps)}) +
        more);
  };
  ASSERT_EQ(run(40, 3, {}).status, 0);
  const Words resume = {"--resume", "latest"};
  EXPECT_EQ(run(40, 3, resume).err, "");
  EXPECT_THAT(run(20, 4, resume).err,
              HasSubstr("the checkpoint was trained with data of 40 rows, these are 20 rows"));
  const Finished shorter = run(7, 6, resume);
  EXPECT_EQ(shorter.status, 2);
  EXPECT_THAT(shorter.err, HasSubstr("it has used 16 rows of its epoch's 20, and the data have "
                                     "only 7"));
}

TEST(SignalTest, ARunThatIsToldToStopSavesAndGoesOn) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) {
    const CheckpointRuns runs;
    const Words run = checkpointed_model() + batch(7) + ranks(2) + Words{"--log-interval", "1"};
    const Words endless = run + steps(100000000) + runs.saving();
    Program program(endless);
    ASSERT_TRUE(program.until_output("step 20/", 30)) << program.err();
    kill(program.pid(), number);
    const Finished finished = program.wait(20);
    EXPECT_EQ(finished.status, 128 + number) << finished.err;
    const std::string last = runs.checkpoints().back();
    EXPECT_THAT(finished.out, HasSubstr("saved " + runs.dir() + "/" + last));
    const int step = runs.manifest(last)["step"].get<int>();
    const std::string again = joined(endless + Words{"--resume", "latest"}, " ");
    EXPECT_EQ(finished.err,
              format_text("stopped at update {} of 100000000; to continue: {}\n", step, again));
    const std::string resumed = runs.trained(run + runs.resuming() + steps(step + 10));
    const CheckpointRuns plain;
    EXPECT_EQ(resumed, plain.trained(run + steps(step + 10)));
  }
}

TEST(SignalTest, WithoutAPlaceThereIsTheFileSoFar) {
  const CheckpointRuns runs;
  const std::string output = runs / "so far.onnx";
  Program program(checkpointed_model() + ranks(2) + steps(100000000) +
                  Words{"--log-interval", "1", "--output", output});
  ASSERT_TRUE(program.until_output("step 20/", 30)) << program.err();
  program.signal(SIGINT);
  const Finished finished = program.wait(20);
  EXPECT_EQ(finished.status, 128 + SIGINT);
  EXPECT_THAT(finished.err, testing::MatchesRegex("stopped at update [0-9]+ of 100000000; nothing "
                                                  "can be continued, as .*\n"));
  EXPECT_THAT(finished.out, HasSubstr("wrote " + output + " (so far)"));
  EXPECT_EQ(Program::run(checkpointed_model() + steps(1) + Words{"--resume", output}).status, 0);
}

TEST(SignalTest, OffEndsAtOnce) {
  for (const int count : {1, 2}) {
    const CheckpointRuns runs;
    Program program(checkpointed_model() + ranks(count) + steps(100000000) + runs.saving() +
                    Words{"--checkpoint-interval", "100000000step", "--log-interval", "1",
                          "--save-on-signal", "off"});
    ASSERT_TRUE(program.until_output("step 20/", 30)) << program.err();
    program.signal(SIGTERM);
    const Finished finished = program.wait(20);
    EXPECT_EQ(finished.status, 128 + SIGTERM);
    EXPECT_EQ(finished.err, "");
    EXPECT_TRUE(runs.checkpoints().empty());
  }
}

// A long update does not hold up a user who asks twice.
TEST(SignalTest, ASecondOneEndsAtOnce) {
  for (const int count : {1, 2}) {
    const CheckpointRuns runs;
    const Words long_updates{"--data",    "synthetic", "--grad-accum", std::to_string(1000 / count),
                             "--threads", "1"};
    Program program(checkpointed_model() + ranks(count) + batch(20000) + steps(3) + long_updates +
                    Words{"--run-dir", runs / "runs", "--run-name", "one"});
    ASSERT_TRUE(program.until_output("step 1/", 60)) << program.err();
    program.signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    program.signal(SIGTERM);
    const Finished finished = program.wait(5);
    EXPECT_EQ(finished.status, 128 + SIGTERM) << finished.out;
    EXPECT_EQ(finished.err, "");
  }
}

// ---- Run folders ----

Words in_folder(const CheckpointRuns& runs, const std::string& name) {
  return {"--run-dir", runs / "runs", "--run-name", name};
}

TEST(ResumeCommandTest, GoesOnWithItsOwnCommandFromAnywhere) {
  const CheckpointRuns runs;
  const Words run = checkpointed_model() + batch(7) + ranks(2) +
                    Words{"--lr-schedule", "cosine", "--total-steps", "40"};
  const std::string expected = runs.trained(run + steps(30));
  const Finished first = Program::run(run + steps(17) + in_folder(runs, "one"));
  ASSERT_EQ(first.status, 0) << first.err;
  const Words resume = fsdp_run({"resume", "one", "--steps", "30"});
  const Finished then = Program::run(resume, {.folder = runs / "runs"});
  EXPECT_EQ(then.status, 0) << then.err;
  EXPECT_EQ(then.err, "");
  EXPECT_TRUE(onnx_bytes::content(runs / "runs/one/model.onnx") == expected);
  EXPECT_EQ(losses_by_step(runs / "runs/one/metrics.jsonl").size(), 30u);
  const std::string log = onnx_bytes::content(runs / "runs/one/log.txt");
  EXPECT_THAT(log, HasSubstr("step 17/17"));
  EXPECT_THAT(log, HasSubstr("step 30/30"));
}

TEST(ResumeCommandTest, EditsOfTheModelNeedNotBeRepeated) {
  for (const Words& edit : std::vector<Words>{{"--lora", "*weight*", "--lora-rank", "2"},
                                              {"--replace-head", "7"},
                                              {"--add-head", "7:more"}}) {
    SCOPED_TRACE(joined(edit, " "));
    const CheckpointRuns runs;
    const Words run = checkpointed_model() + batch(7) + edit;
    const std::string expected = runs.trained(run + steps(9));
    ASSERT_EQ(Program::run(run + steps(4) + in_folder(runs, "one")).status, 0);
    const Words resume = fsdp_run({"resume", runs / "runs/one", "--steps", "9"});
    const Finished then = Program::run(resume);
    EXPECT_EQ(then.status, 0) << then.err;
    EXPECT_EQ(then.err, "");
    EXPECT_EQ(losses_by_step(runs / "runs/one/metrics.jsonl").size(), 9u);
    EXPECT_TRUE(onnx_bytes::content(runs / "runs/one/model.onnx") == expected);
  }
}

TEST(ResumeCommandTest, ARunThatIsDoneSaysSo) {
  const CheckpointRuns runs;
  const Words run = checkpointed_model() + batch(8);
  ASSERT_EQ(Program::run(run + in_folder(runs, "one")).status, 0);
  const Finished by_epochs = Program::run(fsdp_run({"resume", runs / "runs/one"}));
  EXPECT_EQ(by_epochs.status, 0) << by_epochs.err;
  EXPECT_THAT(by_epochs.out, HasSubstr("\nstep 24 of 24: nothing left to do; raise --epochs\n"));
  ASSERT_EQ(Program::run(run + steps(5) + runs.saving()).status, 0);
  const Finished by_steps = Program::run(run + steps(5) + runs.resuming());
  EXPECT_EQ(by_steps.status, 0) << by_steps.err;
  EXPECT_THAT(by_steps.out, HasSubstr("\nstep 5 of 5: nothing left to do; raise --steps\n"));
}

TEST(ResumeCommandTest, AForgottenEditIsNamed) {
  const CheckpointRuns runs;
  const Words run = checkpointed_model() + batch(7) + steps(3);
  const Words lora{"--lora", "*weight*"};
  ASSERT_EQ(Program::run(run + lora + runs.saving()).status, 0);
  const Finished finished = Program::run(run + runs.resuming());
  EXPECT_EQ(finished.status, 2);
  EXPECT_THAT(finished.err, HasSubstr("; it was trained with --lora *weight*: expected the same "
                                      "here, found none\n"));
}

}  // namespace resume_test
}  // namespace ofsdp
