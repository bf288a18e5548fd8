// The launcher, with this program as the ranks: with --as-rank SCENE it plays one of the scenes
// below. A test runs the launcher in a child process and reads the output.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

#include "fsdp/comm/rank_identity.h"
#include "tests/ranks/launch_process.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace launcher_test {

using testing::HasSubstr;
using testing::MatchesRegex;

// ---- Scenes of the ranks ----

int end(Communicator& c, const Status& status) {
  if (!status.ok()) {
    if (c.fail(status)) fmt::print(stderr, "error: {}\n", status.message());
    return c.exit_status();
  }
  return c.leave().ok() ? 0 : 1;
}

Status keep_meeting(Communicator& c) {
  while (true) OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 9}));
}

volatile sig_atomic_t g_signals = 0;

int until_a_signal(Communicator& c) {
  signal(SIGTERM, [](int) { g_signals = g_signals + 1; });
  if (!c.barrier({"barrier", -1, 0}).ok()) return 1;
  if (c.rank() == 0) fmt::print(stderr, "ready\n");
  while (g_signals == 0) usleep(1000);
  fmt::print(stderr, "signal\n");
  return end(c, {});
}

using Scene = std::function<int(Communicator&)>;

const std::map<std::string, Scene> kScenes = {
    {"fine",
     [](Communicator& c) {
       return end(c, c.barrier({"barrier", -1, 0}));
     }},
    {"say",
     [](Communicator& c) {
       cpu_set_t mine;
       sched_getaffinity(0, sizeof mine, &mine);
       fmt::print(stderr, "rank {} of {} parent {} cores {} omp {}\n", c.rank(), c.size(),
                  getppid(), CPU_COUNT(&mine), getenv("OMP_WAIT_POLICY"));
       return end(c, c.barrier({"barrier", -1, 0}));
     }},
    {"wrong input",
     [](Communicator& c) {
       return end(c, c.rank() == 1 ? input_error("bad label") : keep_meeting(c));
     }},
    {"killed",
     [](Communicator& c) {
       if (c.rank() == 1) kill(getpid(), SIGKILL);
       return end(c, keep_meeting(c));
     }},
    {"killed alone",
     [](Communicator& c) {  // the other rank does not look
       if (c.rank() == 1) kill(getpid(), SIGKILL);
       while (true) pause();
       return 0;
     }},
    {"stopped",
     [](Communicator& c) {
       if (c.rank() == 1) raise(SIGSTOP);
       return end(c, keep_meeting(c));
     }},
    {"until a signal", until_a_signal},
    {"for ever",
     [](Communicator& c) {
       fmt::print(stderr, "pid {}\n", getpid());
       return end(c, keep_meeting(c));
     }},
};

int be_rank(const std::string& scene) {
  auto identity = rank_identity_from_environment();
  if (!identity.ok() || !*identity) return 9;
  auto connected = connect_ranks(**identity, std::chrono::seconds(scene == "stopped" ? 1 : 30));
  if (!connected.ok()) return 8;
  return kScenes.at(scene)(**connected);
}

// ---- Tests of the launcher ----

TEST(Launcher, IsDoneWhenAllRanksAre) {
  for (const int nproc : {1, 2, 5}) {
    Launch launch(nproc, "fine");
    EXPECT_EQ(launch.read_all(), "");
    EXPECT_EQ(launch.wait(), 0);
  }
}

TEST(Launcher, TellsRanksWhoTheyAreAndGivesThemTheirCores) {
  cpu_set_t mine;
  sched_getaffinity(0, sizeof mine, &mine);
  const int cores = CPU_COUNT(&mine);
  Launch launch(2, "say");
  const std::string said = launch.read_all();
  EXPECT_EQ(launch.wait(), 0);
  for (const int rank : {0, 1}) {
    const int share = cores < 2 ? cores : rank == 0 ? (cores + 1) / 2 : cores / 2;
    EXPECT_THAT(said, HasSubstr(format_text("rank {} of 2 parent {} cores {} omp passive\n", rank,
                                            launch.pid(), share)));
  }
}

TEST(Launcher, TheReportingRanksStatusIsTheRuns) {
  Launch launch(3, "wrong input");
  EXPECT_EQ(launch.read_all(), "error: bad label\n");
  EXPECT_EQ(launch.wait(), 2);
}

TEST(Launcher, OneLineForADeadRank) {
  Launch launch(3, "killed");
  EXPECT_THAT(
      launch.read_all(),
      MatchesRegex("error: rank 1 \\(pid [0-9]+ on .*\\) died while rank [02] waited in barrier "
                   "at step 9\n"));
  EXPECT_EQ(launch.wait(), 1);
}

TEST(Launcher, SpeaksItselfWhenNoRankDoes) {
  const double begin = now_seconds();
  Launch launch(2, "killed alone");
  EXPECT_THAT(launch.read_all(),
              MatchesRegex("launcher: rank 1 \\(pid [0-9]+ on .*\\) was killed by signal 9\n"));
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_LT(now_seconds() - begin, 10);
}

TEST(Launcher, KillsAStoppedRankOnceTheOthersHaveGivenUp) {
  const double begin = now_seconds();
  Launch launch(2, "stopped");
  EXPECT_THAT(
      launch.read_all(),
      MatchesRegex("error: rank 1 \\(pid [0-9]+ on .*\\) did not arrive within 1 s: barrier, "
                   "step 9\n"));
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_LT(now_seconds() - begin, 12);
}

TEST(Launcher, PassesSignalsOn) {
  Launch launch(2, "until a signal");
  EXPECT_EQ(launch.read_line(), "ready");
  kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.read_all(), "signal\nsignal\n");
  EXPECT_EQ(launch.wait(), 0);
}

bool gone(pid_t pid) {
  std::ifstream file(format_text("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  return line.empty() || line.find(") Z") != std::string::npos;
}

TEST(Launcher, RanksDieWithItEvenWhenItIsKilled) {
  Launch launch(2, "for ever");
  pid_t ranks[2];
  for (pid_t& rank : ranks) {
    const std::string line = launch.read_line();
    ASSERT_THAT(line, MatchesRegex("pid [0-9]+"));
    rank = std::stoi(line.substr(4));
  }
  kill(launch.pid(), SIGKILL);
  EXPECT_EQ(launch.wait(), -SIGKILL);
  for (int i = 0; i < 2000 && !(gone(ranks[0]) && gone(ranks[1])); ++i) usleep(1000);
  EXPECT_TRUE(gone(ranks[0]));
  EXPECT_TRUE(gone(ranks[1]));
  EXPECT_EQ(launch.read_all(), "");
}

}  // namespace launcher_test
}  // namespace ofsdp

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--as-rank") == 0)
    return ofsdp::launcher_test::be_rank(argv[2]);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
