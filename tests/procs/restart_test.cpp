// --max-restarts on one host: which failures restart, which do not, and from which point. A run's
// folder stays the same.
#include "tests/support/failing_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace restart_test {

using testing::HasSubstr;

Words run_of(const Words& more) {
  return checkpointed_model() + ranks(2) + Words{"--batch-size",   "7", "--steps",        "200",
                                                 "--log-interval", "1", "--max-restarts", "1"} +
         more;
}

// Kills a rank past step 20.
Finished killed_once(const CheckpointRuns& runs, const Words& words) {
  Program program(words + Words{"--output", runs / "trained.onnx"});
  EXPECT_TRUE(program.until_output("step 20/", 30)) << program.err();
  signal_rank(program.pid(), 1, SIGKILL);
  return program.wait(30);
}

std::string output_of(const CheckpointRuns& runs) {
  return onnx_bytes::content(runs / "trained.onnx");
}

TEST(RestartTest, WithoutCheckpointsItBeginsAgain) {
  const CheckpointRuns runs;
  const std::string expected = runs.trained(run_of({}));
  const Finished run = killed_once(runs, run_of({}));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("fsdp-run: restart 1 of 1: from where the run began, for nothing "
                                 "is saved without --checkpoint-dir\n"));
  EXPECT_TRUE(output_of(runs) == expected);
}

TEST(RestartTest, GoesOnFromItsCheckpointAndAppendsToItsMetrics) {
  const CheckpointRuns runs;
  const Words words =
      run_of({"--checkpoint-interval", "10step", "--checkpoint-sync"}) + runs.saving();
  const std::string expected = runs.trained(words);
  std::filesystem::remove_all(runs.dir());
  const Finished run = killed_once(runs, words + Words{"--metrics", runs / "metrics.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("restart 1 of 1: from the latest checkpoint in " + runs.dir()));
  EXPECT_THAT(run.out, HasSubstr("resuming from " + runs.dir() + "/step-"));
  EXPECT_TRUE(output_of(runs) == expected);
  const auto losses = losses_by_step(runs / "metrics.jsonl");
  EXPECT_EQ(losses.front().first, 1);
  EXPECT_EQ(losses.back().first, 200);
  EXPECT_GE(losses.size(), 200u);
}

// A folder may hold the checkpoints of another run, which this one does not continue.
TEST(RestartTest, DoesNotGoOnFromCheckpointsThatWereThereBefore) {
  const CheckpointRuns runs;
  runs.trained(run_of({"--checkpoint-interval", "50step"}) + runs.saving());
  const Words other = run_of({"--seed", "5", "--checkpoint-interval", "1000step"});
  const std::string expected = runs.trained(other);
  const Words overwriting{"--overwrite-checkpoints", "on"};
  const Finished run = killed_once(runs, other + runs.saving() + overwriting);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("for it has saved no checkpoint in " + runs.dir() + " yet"));
  EXPECT_TRUE(output_of(runs) == expected);
}

TEST(RestartTest, GoesOnInTheSameFolder) {
  const CheckpointRuns runs;
  const Words words = run_of({"--checkpoint-interval", "10step", "--checkpoint-sync"});
  const std::string expected = runs.trained(words);
  Program program(words + Words{"--run-dir", runs / "runs", "--run-name", "one"});
  EXPECT_TRUE(program.until_output("step 20/", 30)) << program.err();
  signal_rank(program.pid(), 1, SIGKILL);
  const Finished run = program.wait(30);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("from the latest checkpoint in " + runs.path() + "/runs/one/"));
  EXPECT_TRUE(onnx_bytes::content(runs / "runs/one/model.onnx") == expected);
  EXPECT_EQ(losses_by_step(runs / "runs/one/metrics.jsonl").back().first, 200);
  EXPECT_FALSE(std::filesystem::exists(runs / "runs/one-2"));
}

TEST(RestartTest, AUsersMistakeIsNotTriedAgain) {
  const ModelFolder folder;
  const Finished run = Program::run(folder.train() + ranks(2) +
                                    Words{"--max-restarts", "3", "--resume", folder / "nothing"});
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"--resume", folder / "nothing"});
}

TEST(RestartTest, OneRankIsStartedAgainToo) {
  const CheckpointRuns runs;
  const Words words =
      checkpointed_model() + Words{"--steps", "200", "--log-interval", "1", "--max-restarts", "1"};
  const std::string expected = runs.trained(words);
  Program program(words + Words{"--output", runs / "trained.onnx"});
  EXPECT_TRUE(program.until_output("step 20/", 30)) << program.err();
  signal_rank(program.pid(), 0, SIGKILL);
  const Finished run = program.wait(30);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 0 (pid "));
  EXPECT_THAT(run.err, HasSubstr(") was killed by signal 9\nfsdp-run: restart 1 of 1: "));
  EXPECT_TRUE(output_of(runs) == expected);
}

// As schedulers and service managers end a job: the launcher and all ranks get the signal, and the
// launcher signals the ranks once more.
TEST(RestartTest, ASignalToEveryProcessSavesAndStartsNothingAgain) {
  const CheckpointRuns runs;
  Program program(run_of({"--checkpoint-interval", "100000000step"}) + runs.saving() +
                  Words{"--steps", "100000000"});
  EXPECT_TRUE(program.until_output("step 20/", 30)) << program.err();
  std::vector<pid_t> all = children_of(program.pid());
  all.push_back(program.pid());
  for (const pid_t pid : all) kill(pid, SIGTERM);
  const Finished run = program.wait(30);
  EXPECT_EQ(run.status, 128 + SIGTERM) << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  EXPECT_THAT(run.err, HasSubstr("; to continue: "));
  EXPECT_EQ(runs.checkpoints().size(), 1u);
}

// All others have finished: only the launcher waits for a rank that stops at the very
// end.
TEST(RestartTest, ARankThatStaysStoppedIsKilled) {
  const CheckpointRuns runs;
  Program program(checkpointed_model() + Words{"--steps", "100000000", "--log-interval", "1",
                                               "--timeout", "1", "--max-restarts", "1"});
  EXPECT_TRUE(program.until_output("step 20/", 30)) << program.err();
  const pid_t first = pid_of_rank(program.pid(), 0);
  ASSERT_GT(first, 0);
  kill(first, SIGSTOP);
  EXPECT_TRUE(holds_within(20, [&] {
    const pid_t now = pid_of_rank(program.pid(), 0);
    return now != 0 && now != first;
  }));
  EXPECT_THAT(program.err(),
              HasSubstr(" was stopped, and did not go on\nfsdp-run: restart 1 of 1"));
}

}  // namespace restart_test
}  // namespace ofsdp
