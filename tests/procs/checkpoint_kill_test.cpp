// A run that saves at every step, with ranks killed at random moments: each time it goes on from
// the latest checkpoint and ends with the bits of an uninterrupted run.
//
// Then runs that are told to stop at random moments: each is continued by the command that it
// prints.
//
// OFSDP_KILLS is the number of kills (6), OFSDP_TEST_KILLS the number of stopped runs (5);
// OFSDP_KILL_SEED chooses the moments.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace checkpoint_kill_test {

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

Words run_of(int world, const std::string& type) {
  return checkpointed_model() + ranks(world) +
         Words{"--batch-size", "7", "--checkpoint-interval", "1step", "--checkpoint-type", type,
               "--steps",      "40"};
}

// Kills all ranks, or only the launcher, with which they die.
void kill_all(Program& program, bool launcher_alone) {
  const std::vector<pid_t> pids = children_of(program.pid());
  if (launcher_alone || pids.empty()) program.signal(SIGKILL);
  for (const pid_t pid : launcher_alone ? std::vector<pid_t>{} : pids) kill(pid, SIGKILL);
  program.wait(20);
}

TEST(CheckpointKillTest, EndsWithTheBitsOfTheUninterruptedRun) {
  const int kills = setting("OFSDP_KILLS", 6);
  std::mt19937 random(static_cast<unsigned>(setting("OFSDP_KILL_SEED", 1)));
  const std::string types[] = {"sharded", "full", "local"};
  int before_the_first = 0, finished = 0;
  for (int trial = 0; trial < kills; ++trial) {
    const int world = 2 + trial % 2;
    const std::string type = types[trial % 3];
    const CheckpointRuns runs;
    const std::string expected = runs.trained(run_of(world, type));
    const Finished whole = Program::run(run_of(world, type) + runs.saving());
    ASSERT_EQ(whole.status, 0) << whole.err;
    std::filesystem::remove_all(runs.dir());
    const double moment = std::uniform_real_distribution(0.0, whole.seconds)(random);
    SCOPED_TRACE(format_text("trial {}: {} of {} ranks after {} s", trial, type, world, moment));
    {
      Program program(run_of(world, type) + runs.saving());
      std::this_thread::sleep_for(std::chrono::duration<double>(moment));
      kill_all(program, trial % 5 == 4);
    }
    EXPECT_TRUE(runs.trained(run_of(world, type) + runs.resuming()) == expected);
    EXPECT_EQ(runs.last().err, "") << "a checkpoint was harmed";
    before_the_first += runs.last().out.find("starting from the beginning") != std::string::npos;
    finished += runs.last().out.find("step 40/40") == std::string::npos;
    if (HasFailure()) return;
  }
  std::printf("%d kills: %d before the first checkpoint, %d behind the last\n", kills,
              before_the_first, finished);
}

// A run in a folder, with evaluations.
Words kept_run(int world, const std::string& name) {
  return checkpointed_model() + ranks(world) +
         Words{"--batch-size",      "7",         "--steps", "200",        "--eval-data",
               fixture("mlp/data"), "--run-dir", "runs",    "--run-name", name};
}

// In turn by SIGTERM and by Ctrl-C, with one rank and two.
TEST(StopTest, ThePrintedCommandEndsWithTheBitsOfTheUndisturbedRun) {
  const int stops = setting("OFSDP_TEST_KILLS", 5);
  std::mt19937 random(static_cast<unsigned>(setting("OFSDP_KILL_SEED", 1)));
  int silent = 0, continued = 0, from_the_beginning = 0;
  for (int trial = 0; trial < stops; ++trial) {
    const int number = trial % 2 == 0 ? SIGTERM : SIGINT, world = 1 + trial / 2 % 2;
    const CheckpointRuns runs;
    const Start start{.folder = runs.path()};
    const Finished whole = Program::run(kept_run(world, "whole"), start);
    ASSERT_EQ(whole.status, 0) << whole.err;
    const double moment = std::uniform_real_distribution(0.0, 0.9 * whole.seconds)(random);
    SCOPED_TRACE(
        format_text("trial {}: {} ranks, signal {} after {} s", trial, world, number, moment));
    Program program(kept_run(world, "stopped"), start);
    std::this_thread::sleep_for(std::chrono::duration<double>(moment));
    program.signal(number);
    const Finished stopped = program.wait(30);
    if (stopped.status == 0) continue;  // it ended before the signal
    EXPECT_EQ(stopped.status, 128 + number) << stopped.err;
    if (stopped.err.empty()) {  // it had not yet printed the first line
      EXPECT_FALSE(std::filesystem::exists(runs / "runs/stopped"));
      ++silent;
      continue;
    }
    ASSERT_THAT(stopped.err, testing::MatchesRegex("stopped at update [0-9]+ of 200; to continue: "
                                                   ".* resume runs/stopped\n"));
    EXPECT_TRUE(std::filesystem::exists(runs / "runs/stopped/model.onnx")) << "the file so far";
    const std::string command = stopped.err.substr(stopped.err.find("continue: ") + 10);
    const Finished then = Program::run({"/bin/sh", "-c", command}, start);
    EXPECT_EQ(then.status, 0) << then.err;
    EXPECT_EQ(then.err, "");
    EXPECT_TRUE(onnx_bytes::content(runs / "runs/stopped/model.onnx") ==
                onnx_bytes::content(runs / "runs/whole/model.onnx"));
    ++continued;
    from_the_beginning += stopped.err.find("update 0 of") != std::string::npos;
    if (HasFailure()) return;
  }
  std::printf("%d stops: %d continued, %d of them from the beginning; %d before the program ran\n",
              stops, continued, from_the_beginning, silent);
}

}  // namespace checkpoint_kill_test
}  // namespace ofsdp
