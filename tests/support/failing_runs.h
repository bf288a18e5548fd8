// Runs in which a random rank is killed or stopped at a random moment. Each is made twice: without
// restarts, when all others must end in time, say once which rank it was, and leave nothing; and
// with --max-restarts 1, when the trained file must have the bits of an undisturbed run.
//
// Ownership: values. Threads: one. Errors: test failures.
#pragma once

#include <signal.h>

#include <chrono>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/checkpoint_runs.h"

namespace ofsdp {

struct FailingRun {
  int world = 2;
  int number = SIGKILL;  // what the victim gets
  int victim = 0;
  double moment = 0;  // seconds after its start
  std::string type = "sharded";

  Words command() const {
    return checkpointed_model() + ranks(world) + Words{"--batch-size",
                                                       "7",
                                                       "--checkpoint-interval",
                                                       "20step",
                                                       "--checkpoint-type",
                                                       type,
                                                       "--steps",
                                                       "200",
                                                       "--timeout",
                                                       "2"};
  }
  std::string text() const {
    return fmt::format("rank {} of {} gets signal {} after {} s; {} checkpoints", victim, world,
                       number, moment, type);
  }
};

// Processes with this text in their command line, that have not ended.
inline std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || !is_alive(pid)) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::stringstream words;
    words << file.rdbuf();
    if (words.str().find(text) != std::string::npos) found.push_back(pid);
  }
  return found;
}

// Of ours: other programs come and go there.
inline std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("fsdp") != std::string::npos) names.insert(name);
  }
  return names;
}

// The rank of this number among the launcher's children, whose environment says which they are.
inline pid_t pid_of_rank(pid_t launcher, int rank) {
  const std::string wanted = fmt::format("RANK={}", rank);
  for (const pid_t pid : children_of(launcher)) {
    std::ifstream file(fmt::format("/proc/{}/environ", pid));
    for (std::string variable; std::getline(file, variable, '\0');) {
      if (variable == wanted) return pid;
    }
  }
  return 0;
}

class FailingRuns {
 public:
  // How the disturbed runs ended.
  struct Counts {
    int ended = 0, late = 0, again = 0;
  };

  void disturb(const FailingRun& run) {
    const CheckpointRuns runs;
    const std::string expected = runs.trained(run.command());
    const double whole = runs.last().seconds;
    FailingRun now = run;
    now.moment *= whole;
    SCOPED_TRACE(now.text());
    std::filesystem::remove(runs / "trained.onnx");
    once(now, runs);
    std::filesystem::remove_all(runs.dir());
    std::filesystem::remove(runs / "trained.onnx");
    again(now, runs, expected);
  }

  const Counts& counts() const { return counts_; }

 private:
  static Finished hurt(const FailingRun& run, const CheckpointRuns& runs, const Words& more) {
    Program program(run.command() + runs.saving() + Words{"--output", runs / "trained.onnx"} +
                    more);
    pid_t victim = 0;
    EXPECT_TRUE(
        holds_within(10, [&] { return (victim = pid_of_rank(program.pid(), run.victim)) != 0; }));
    std::this_thread::sleep_for(std::chrono::duration<double>(run.moment));
    if (victim > 0 && is_alive(victim)) kill(victim, run.number);
    return program.wait(30);
  }

  void once(const FailingRun& run, const CheckpointRuns& runs) {
    const std::set<std::string> before = shared_memory();
    const Finished finished = hurt(run, runs, {});
    if (finished.status == 0) {
      ++counts_.late;
    } else {
      ++counts_.ended;
      EXPECT_EQ(finished.status, 1);
      EXPECT_THAT(finished.err, testing::MatchesRegex(
                                    fmt::format("fsdp-run: [^\n]*rank {}[^\n]*\n", run.victim)));
      EXPECT_FALSE(std::filesystem::exists(runs / "trained.onnx"));
    }
    expect_nothing_left(runs);
    EXPECT_EQ(shared_memory(), before);
  }

  void again(const FailingRun& run, const CheckpointRuns& runs, const std::string& expected) {
    const Finished finished = hurt(run, runs, {"--max-restarts", "1"});
    EXPECT_EQ(finished.status, 0) << finished.err;
    const bool restarted = finished.err.find("fsdp-run: restart 1 of 1: ") != std::string::npos;
    EXPECT_EQ(lines_of(finished.err).size(), restarted ? 2u : 0u) << finished.err;
    EXPECT_TRUE(onnx_bytes::content(runs / "trained.onnx") == expected);
    counts_.again += restarted;
    expect_nothing_left(runs);
  }

  static void expect_nothing_left(const CheckpointRuns& runs) {
    EXPECT_EQ(processes_with(runs.path()), std::vector<pid_t>{});
    for (const auto& entry : std::filesystem::recursive_directory_iterator(runs.path())) {
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
  }

  Counts counts_;
};

// `count` runs: ranks, signals, moments and kinds of checkpoint in turn or by chance.
inline void fail_at_random(int count, unsigned seed) {
  std::mt19937 random(seed);
  const std::string types[] = {"sharded", "full", "local"};
  FailingRuns runs;
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    FailingRun run;
    run.world = 2 + i % 3 / 2;
    run.number = i % 2 == 0 ? SIGKILL : SIGSTOP;
    run.victim = std::uniform_int_distribution(0, run.world - 1)(random);
    run.moment = std::uniform_real_distribution(0.0, 1.0)(random);
    run.type = types[i % 3];
    runs.disturb(run);
  }
  std::printf(
      "%d runs disturbed: %d ended with one line, %d were done before; of as many with "
      "--max-restarts 1, %d were started again\n",
      count, runs.counts().ended, runs.counts().late, runs.counts().again);
}

inline int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace ofsdp
