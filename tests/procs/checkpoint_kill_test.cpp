// Ranks that are killed at random moments of a run that saves at every step: each time the run goes
// on from its latest checkpoint and ends with the bits of the uninterrupted one.
//
// OFSDP_KILLS says how often (6); OFSDP_KILL_SEED which moments.
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

// All of them, or the launcher, with which they die.
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

}  // namespace checkpoint_kill_test
}  // namespace ofsdp
