// Runs in which a random rank is killed, stopped or cut off at a random moment. One host, or two as
// network namespaces. Each run is made twice. Without restarts all others must end in time, report
// the rank once, and leave nothing. With --max-restarts 1 the trained file must have the bits of an
// undisturbed run.
//
// A cut ends when both sides must have noticed. Then the launcher on the second host is started
// anew, as a cluster's scheduler would, and takes the place of the old one.
//
// Ownership: values. Threads: one. Errors: test failures.
#pragma once

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/stream_socket.h"
#include "tests/procs/namespaces.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/shared_memory.h"

namespace ofsdp {

enum class Harm { kKill, kStop, kCut };

inline const char* text(Harm harm) {
  constexpr const char* kTexts[] = {"killed", "stopped", "cut off"};
  return kTexts[static_cast<int>(harm)];
}

struct FailingRun {
  int hosts = 1;
  std::vector<int> ranks = {2};  // on each host
  Harm harm = Harm::kKill;
  int victim = 0;
  double moment = 0;  // seconds after the start
  std::string type = "sharded";

  static constexpr int kTimeout = 6;

  Words command() const {
    return checkpointed_model() + Words{"--batch-size",
                                        "7",
                                        "--threads",
                                        "1",
                                        "--checkpoint-interval",
                                        "20step",
                                        "--checkpoint-type",
                                        type,
                                        "--steps",
                                        "200",
                                        "--timeout",
                                        std::to_string(kTimeout)};
  }
  std::string text() const {
    return format_text("rank {} is {} after {} s; {} host(s), the first with {} ranks, {}", victim,
                       ofsdp::text(harm), moment, hosts, ranks[0], type);
  }
};

// The launcher's child with this rank in the environment.
inline pid_t pid_of_rank(pid_t launcher, int rank) {
  const std::string wanted = format_text("RANK={}", rank);
  for (const pid_t pid : children_of(launcher)) {
    std::ifstream file(format_text("/proc/{}/environ", pid));
    for (std::string variable; std::getline(file, variable, '\0');) {
      if (variable == wanted) return pid;
    }
  }
  return 0;
}

// Signals a running rank; process 0 would be the whole process group.
inline void signal_rank(pid_t launcher, int rank, int signal) {
  const pid_t pid = pid_of_rank(launcher, rank);
  ASSERT_GT(pid, 0) << "no rank " << rank;
  kill(pid, signal);
}

// A run's launchers, one a host.
class Launchers {
 public:
  Launchers(const FailingRun& run, const Words& words, const Namespaces& hosts) {
    const int port = free_port();
    for (int host = 0; host < run.hosts; ++host) {
      Words command = words + ranks(run.ranks[static_cast<size_t>(host)]);
      if (run.hosts > 1) {
        command = hosts.words_on(host) + command +
                  Words{"--nnodes",        "2",
                        "--node-rank",     std::to_string(host),
                        "--rdzv-endpoint", format_text("{}:{}", Namespaces::kAddress[0], port)};
      }
      commands_.push_back(command);
      start(static_cast<size_t>(host));
    }
  }

  void start(size_t host) { programs_.push_back(std::make_unique<Program>(commands_[host])); }

  pid_t rank(int number) const {
    for (const auto& program : programs_) {
      if (const pid_t pid = pid_of_rank(program->pid(), number); pid != 0) return pid;
    }
    return 0;
  }

  // Waits for all; returns the first host's status.
  Finished wait() {
    Finished all = programs_[0]->wait(kPatience);
    for (size_t i = 1; i < programs_.size(); ++i) {
      const Finished one = programs_[i]->wait(kPatience);
      all.err += one.err;
      statuses_.push_back(one.status);
    }
    return all;
  }
  const std::vector<int>& other_statuses() const { return statuses_; }

 private:
  static constexpr double kPatience =
      90;  // seconds: a run that hangs takes longer, a slow one on a busy machine does not

  std::vector<Words> commands_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<int> statuses_;
};

// Counts of the disturbed runs for one kind of harm.
struct Endings {
  int runs = 0;
  int ended = 0;       // with status 1 and a line; the others were done before
  int restarted = 0;   // of as many runs with --max-restarts 1; all write the same bits
  double longest = 0;  // seconds from the harm to the end
};

class FailingRuns {
 public:
  explicit FailingRuns(Namespaces& hosts) : hosts_(hosts) {}

  void disturb(const FailingRun& run) {
    const CheckpointRuns runs;
    Launchers plain(run, command(run, runs), hosts_);
    const Finished whole = plain.wait();
    EXPECT_EQ(whole.status, 0) << whole.err;
    const std::string expected = onnx_bytes::content(runs / "trained.onnx");
    FailingRun now = run;
    now.moment *= whole.seconds;
    SCOPED_TRACE(now.text());
    endings_ = &all_[static_cast<size_t>(run.harm)];
    ++endings_->runs;
    clear(runs);
    once(now, runs, expected);
    clear(runs);
    again(now, runs, expected);
  }

  const Endings& endings(Harm harm) const { return all_[static_cast<size_t>(harm)]; }

 private:
  static Words command(const FailingRun& run, const CheckpointRuns& runs) {
    return run.command() + runs.saving() + Words{"--output", runs / "trained.onnx"};
  }

  static void clear(const CheckpointRuns& runs) {
    std::filesystem::remove_all(runs.dir());
    std::filesystem::remove(runs / "trained.onnx");
  }

  Finished hurt(const FailingRun& run, const CheckpointRuns& runs, const Words& more) {
    using Clock = std::chrono::steady_clock;
    Launchers launchers(run, command(run, runs) + more, hosts_);
    const auto here = [&](int rank) { return launchers.rank(rank) != 0; };
    const int last = run.ranks[0] + (run.hosts > 1 ? run.ranks[1] : 0) - 1;
    EXPECT_TRUE(holds_within(20, [&] { return here(run.victim) && here(last); }));
    victim_ = launchers.rank(run.victim);
    std::this_thread::sleep_for(std::chrono::duration<double>(run.moment));
    const bool alive = victim_ > 0 && is_alive(victim_);
    const auto then = Clock::now();
    if (run.harm == Harm::kCut) {
      cut_for_a_while(launchers, !more.empty() && alive);
    } else if (alive) {
      kill(victim_, run.harm == Harm::kKill ? SIGKILL : SIGSTOP);
    }
    Finished finished = launchers.wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - then).count();
    if (more.empty()) endings_->longest = std::max(endings_->longest, seconds);
    return finished;
  }

  void cut_for_a_while(Launchers& launchers, bool start_again) {
    hosts_.cut();
    std::this_thread::sleep_for(std::chrono::milliseconds(FailingRun::kTimeout * 1000 + 1500));
    hosts_.join();
    if (start_again) launchers.start(1);
  }

  void once(const FailingRun& run, const CheckpointRuns& runs, const std::string& expected) {
    const SharedMemory before("fsdp");  // other programs use this folder too
    const Finished finished = hurt(run, runs, {});
    if (finished.status != 0) {
      ++endings_->ended;
      EXPECT_EQ(finished.status, 1);
      expect_told(run, finished.err);
      // Whole or absent; whole if the rank was hurt after all had written it.
      const std::string output = runs / "trained.onnx";
      EXPECT_TRUE(!std::filesystem::exists(output) || onnx_bytes::content(output) == expected);
    }
    expect_nothing_left(runs);
    EXPECT_TRUE(before.nothing_was_added());
  }

  // A rank that did not come to the meeting, or ended before it, is known only by number.
  std::string name_of_victim(const FailingRun& run) const {
    return format_text(
        "rank {} (\\(pid {} on {}\\) |(did not arrive )?at |ended before all [0-9]+ ranks had met "
        ")",
        run.victim, victim_, host_name());
  }

  // One line; after a cut one from each side, for neither hears the other.
  void expect_told(const FailingRun& run, const std::string& err) const {
    const std::vector<std::string> lines = lines_of(err);
    EXPECT_GE(lines.size(), 1u);
    EXPECT_LE(lines.size(), run.harm == Harm::kCut ? 2u : 1u) << err;
    for (const std::string& line : lines) {
      const std::string whom =
          run.harm == Harm::kCut ? "(rank|node|rendezvous)" : name_of_victim(run);
      EXPECT_THAT(line, testing::ContainsRegex("^fsdp-run: .*" + whom)) << err;
    }
  }

  void again(const FailingRun& run, const CheckpointRuns& runs, const std::string& expected) {
    const Finished finished = hurt(run, runs, {"--max-restarts", "1"});
    EXPECT_EQ(finished.status, 0) << finished.err;
    const bool restarted = finished.err.find("restart 1 of 1: ") != std::string::npos;
    const size_t most = !restarted ? 0 : run.harm == Harm::kCut ? 4 : 2;
    EXPECT_LE(lines_of(finished.err).size(), most) << finished.err;
    if (restarted && run.harm != Harm::kCut) {
      EXPECT_THAT(finished.err, testing::ContainsRegex("^fsdp-run: " + name_of_victim(run)));
    }
    EXPECT_TRUE(onnx_bytes::content(runs / "trained.onnx") == expected);
    endings_->restarted += restarted;
    expect_nothing_left(runs);
  }

  static void expect_nothing_left(const CheckpointRuns& runs) {
    EXPECT_EQ(processes_with(runs.path()), std::vector<pid_t>{});
    for (const auto& entry : std::filesystem::recursive_directory_iterator(runs.path())) {
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
  }

  Namespaces& hosts_;
  std::array<Endings, 3> all_;
  Endings* endings_ = nullptr;  // for the present run's harm
  pid_t victim_ = 0;
};

// `count` runs: harms, hosts and checkpoint kinds in turn, ranks and moments at random.
inline void fail_at_random(int count, unsigned seed) {
  std::mt19937 random(seed);
  Namespaces hosts;
  if (!hosts.made()) std::printf("so all runs have one host, and nobody is cut off\n");
  const std::string types[] = {"sharded", "full", "local"};
  FailingRuns runs(hosts);
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    FailingRun run;
    run.harm = static_cast<Harm>(i % (hosts.made() ? 3 : 2));
    run.hosts = run.harm == Harm::kCut || (hosts.made() && i % 2 == 1) ? 2 : 1;
    run.ranks = run.hosts == 2 ? std::vector{1 + i % 4 / 2, 1} : std::vector{2 + i % 4 / 2};
    const int world = run.ranks[0] + run.hosts - 1;
    run.victim = std::uniform_int_distribution(0, world - 1)(random);
    run.moment = std::uniform_real_distribution(0.0, 1.0)(random);
    run.type = types[i / 3 % 3];
    runs.disturb(run);
  }
  for (const Harm harm : {Harm::kKill, Harm::kStop, Harm::kCut}) {
    const Endings& e = runs.endings(harm);
    std::printf(
        "%s: %d runs, %d ended with their line (the longest after %.1f s), %d were done before; of "
        "as many with --max-restarts 1, %d were started again\n",
        text(harm), e.runs, e.ended, e.longest, e.runs - e.ended, e.restarted);
  }
}

inline int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace ofsdp
