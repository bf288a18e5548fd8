// Failures while a run trains: ranks and launchers that die, stop or receive a signal, a full disk.
// The run ends in time, names the failed rank once, and leaves no process and no file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "tests/support/mnist_images.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"
#include "tests/support/shared_memory.h"

namespace ofsdp {
namespace faults_test {

// Three ranks that would train for ever, past their first updates.
class EndlessRun {
 public:
  explicit EndlessRun(const Words& more = {})
      : program_(fsdp_run({images_.model(), "--data", images_.path(), "--batch-size", "8",
                           "--epochs", "100000", "--log-interval", "1", "--output", output()}) +
                 mnist_settings() + ranks(3) + more) {
    EXPECT_TRUE(program_.until_output("step 3/", 30)) << program_.err();
    ranks_ = children_of(program_.pid());
    std::ranges::sort(ranks_);  // started in this order
    EXPECT_EQ(ranks_.size(), 3u);
  }

  Program& program() { return program_; }
  pid_t rank(size_t number) const { return ranks_.at(number); }

  // `files`: the number of files from the run.
  void expect_nothing_left(size_t files = 0) {
    for (const pid_t pid : ranks_) {
      EXPECT_TRUE(holds_within(5, [&] { return !is_alive(pid); })) << "rank of pid " << pid;
    }
    EXPECT_TRUE(before_.nothing_was_added());
    const onnx_bytes::Folder& folder = output_;
    EXPECT_EQ(folder.files(), files) << "a part of the output was left";
  }

 private:
  std::string output() const { return output_ / "trained.onnx"; }

  FirstImages images_;
  onnx_bytes::Folder output_;
  const SharedMemory before_;
  Program program_;
  std::vector<pid_t> ranks_;
};

class LostRankTest : public testing::TestWithParam<size_t> {};

INSTANTIATE_TEST_SUITE_P(Ranks, LostRankTest, testing::Values(0, 1, 2));

TEST_P(LostRankTest, KilledIsNamed) {
  EndlessRun run;
  kill(run.rank(GetParam()), SIGKILL);
  const Finished finished = run.program().wait(10);
  EXPECT_EQ(finished.status, 1);
  expect_one_line(finished.err, {format_text("rank {}", GetParam())});
  run.expect_nothing_left();
}

TEST_P(LostRankTest, StoppedIsNamedInTime) {
  EndlessRun run({"--timeout", "2"});
  kill(run.rank(GetParam()), SIGSTOP);
  const Finished finished = run.program().wait(10);
  EXPECT_EQ(finished.status, 1);
  expect_one_line(finished.err, {format_text("rank {}", GetParam())});
  run.expect_nothing_left();
}

TEST(LostLauncherTest, ItsRanksDieWithIt) {
  EndlessRun run;
  kill(run.program().pid(), SIGKILL);
  EXPECT_EQ(run.program().wait(5).status, 128 + SIGKILL);
  run.expect_nothing_left();
}

TEST(SignalTest, ARunEndsInOrder) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) {
    SCOPED_TRACE(strsignal(number));
    EndlessRun run;
    kill(run.program().pid(), number);
    const Finished finished = run.program().wait(10);
    EXPECT_EQ(finished.status, 128 + number);
    EXPECT_EQ(lines_of(finished.err).size(), 1u) << finished.err;
    EXPECT_THAT(finished.err, testing::HasSubstr("; nothing can be continued"));
    run.expect_nothing_left(1);  // the trained file so far
  }
}

// ---- Ranks started by another program ----

Start as_rank(int rank, int world, int port) {
  return {.environment = {format_text("RANK={}", rank), format_text("LOCAL_RANK={}", rank),
                          format_text("WORLD_SIZE={}", world),
                          format_text("LOCAL_WORLD_SIZE={}", world), "MASTER_ADDR=127.0.0.1",
                          format_text("MASTER_PORT={}", port)}};
}

int some_port() { return 20000 + getpid() % 20000; }

// The step lines without the times.
std::vector<std::string> losses_in(const std::string& metrics) {
  std::vector<std::string> losses;
  for (const std::string& line : lines_of(onnx_bytes::content(metrics))) {
    losses.push_back(line.substr(0, line.find(",\"step_ms\"")));
  }
  if (!losses.empty()) losses.pop_back();  // the "end" row
  return losses;
}

TEST(TorchrunTest, RanksStartedByHandTrainAlike) {
  const ModelFolder folder;
  const Words train = mlp() + Words{"--steps", "8", "--batch-size", "6", "--min-params", "1000"};
  const Words launched = train + Words{"--metrics", folder / "launched.jsonl"};
  EXPECT_EQ(Program::run(launched + ranks(2)).status, 0);
  const Words by_hand = train + Words{"--metrics", folder / "by_hand.jsonl"};
  Program first(by_hand, as_rank(0, 2, some_port()));
  Program second(by_hand, as_rank(1, 2, some_port()));
  EXPECT_EQ(first.wait(30).status, 0) << first.err();
  EXPECT_EQ(second.wait(30).status, 0) << second.err();
  EXPECT_EQ(second.out(), "");
  const auto losses = losses_in(folder / "by_hand.jsonl");
  EXPECT_EQ(losses.size(), 8u);
  EXPECT_EQ(losses, losses_in(folder / "launched.jsonl"));
}

TEST(TorchrunTest, ARankThatNeverComesIsNamedInTime) {
  for (const int there : {0, 1}) {
    const Finished run =
        Program::run(mlp() + Words{"--timeout", "2"}, as_rank(there, 2, some_port() + 1));
    EXPECT_EQ(run.status, 1);
    EXPECT_LT(run.seconds, 8);
    expect_one_line(run.err, {format_text("rank {}", 1 - there)});
  }
}

TEST(TorchrunTest, RanksThatCannotBe) {
  Start start = as_rank(2, 2, some_port());
  Finished run = Program::run(mlp(), start);
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"RANK", "2"});
  start.environment = {"RANK=one", "WORLD_SIZE=2"};
  run = Program::run(mlp(), start);
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"RANK", "'one'"});
}

// Another user holds the first names of the ranks' rendezvous and never answers.
class Squatter {
 public:
  Squatter(int port, int names) {
    int ready[2];
    if (pipe(ready) != 0) return;
    pid_ = fork();
    if (pid_ == 0) hold(port, names, ready[1]);
    close(ready[1]);
    char byte = 0;
    holds_ = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
  }
  ~Squatter() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool holds() const { return holds_; }

 private:
  [[noreturn]] static void hold(int port, int names, int ready) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const uid_t user = getuid();
    if (setuid(65534) != 0) _exit(1);
    for (int n = 0; n < names; ++n) {
      const std::string name =
          format_text("ofsdp-{}-127.0.0.1:{}{}", user, port, n == 0 ? "" : format_text(" {}", n));
      sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
      name.copy(address.sun_path + 1, name.size());
      const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
      const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
      if (bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0) _exit(1);
      listen(fd, 1);
    }
    if (write(ready, "r", 1) != 1) _exit(1);
    while (true) pause();
  }

  pid_t pid_ = -1;
  bool holds_ = false;
};

TEST(TorchrunTest, AnotherUserWhoHoldsTheNameIsNoObstacle) {
  if (getuid() != 0) GTEST_SKIP() << "cannot become another user";
  const int port = some_port() + 2;
  const Squatter squatter(port, 2);
  ASSERT_TRUE(squatter.holds());
  const Words train = mlp() + Words{"--steps", "4", "--batch-size", "6"};
  Program first(train, as_rank(0, 2, port));
  Program second(train, as_rank(1, 2, port));
  EXPECT_EQ(first.wait(30).status, 0) << first.err();
  EXPECT_EQ(second.wait(30).status, 0) << second.err();
}

TEST(TorchrunTest, AnotherUserWhoHoldsAllNamesIsNamed) {
  if (getuid() != 0) GTEST_SKIP() << "cannot become another user";
  const int port = some_port() + 3;
  const Squatter squatter(port, 4);
  ASSERT_TRUE(squatter.holds());
  const Finished run = Program::run(mlp() + Words{"--timeout", "1"}, as_rank(0, 2, port));
  EXPECT_EQ(run.status, 1);
  expect_one_line(run.err, {"rank 0 cannot listen", "user 65534 holds it"});
}

// ---- Process 1 in a container, and a closed terminal ----

Words endless(const ModelFolder& folder) {
  return fsdp_run({folder.model(), "--data", "synthetic", "--loss", "cross_entropy", "--steps",
                   "100000000", "--log-interval", "1"});
}

TEST(SignalTest, Process1EndsAtOnce) {
  const ModelFolder folder;
  const Words unshared = Words{"unshare", "--pid", "--fork"};
  if (Program::run(unshared + Words{"true"}).status != 0) GTEST_SKIP() << "no namespaces here";
  for (const int number : {SIGTERM, SIGHUP}) {
    Program program(unshared + endless(folder));
    ASSERT_TRUE(program.until_output("step 3/", 30)) << program.err();
    const std::vector<pid_t> first = children_of(program.pid());
    ASSERT_EQ(first.size(), 1u);
    kill(first[0], number);
    EXPECT_EQ(program.wait(5).status, 128 + number);
  }
}

TEST(SignalTest, NohupStays) {
  const ModelFolder folder;
  for (const int count : {1, 2}) {
    Program program(Words{"/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh"} + endless(folder) +
                    ranks(count));
    ASSERT_TRUE(program.until_output("step 3/", 30)) << program.err();
    program.signal(SIGHUP);
    EXPECT_TRUE(program.until_output("step 2000/", 30));
    program.signal(SIGTERM);
    EXPECT_NE(program.wait(10).status, 128 + SIGHUP);
  }
}

// ---- A full disk ----

// A file system with few bytes, in a private namespace of this process.
class TinyDisk {
 public:
  explicit TinyDisk(const std::string& size) {
    if (unshare(CLONE_NEWNS) != 0) return;
    mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    mounted_ = mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~TinyDisk() {
    if (mounted_) umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const onnx_bytes::Folder& folder() const { return folder_; }

 private:
  onnx_bytes::Folder folder_;
  bool mounted_ = false;
};

TEST(FullDiskTest, NoPartOfTheOutputIsLeft) {
  const TinyDisk disk("16k");  // the model needs 20
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a file system";
  const std::string output = disk.folder() / "trained.onnx";
  for (const int count : {1, 2}) {
    const Finished run =
        Program::run(mlp() + Words{"--steps", "2", "--output", output} + ranks(count));
    EXPECT_EQ(run.status, 1);
    expect_one_line(run.err, {output, "No space left on device"});
    EXPECT_EQ(disk.folder().files(), 0u);
  }
}

TEST(FullDiskTest, TheFileThatWasThereStays) {
  const TinyDisk disk("32k");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a file system";
  const std::string output = disk.folder().write("trained.onnx", std::string(16000, 'x'));
  const Finished run = Program::run(mlp() + Words{"--steps", "2", "--output", output} + ranks(2));
  EXPECT_EQ(run.status, 1);
  expect_one_line(run.err, {output, "No space left on device"});
  EXPECT_EQ(onnx_bytes::content(output), std::string(16000, 'x'));
  EXPECT_EQ(disk.folder().files(), 1u);
}

TEST(FullDiskTest, MetricsAreNamed) {
  const ModelFolder folder;
  const TinyDisk disk("8k");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a file system";
  disk.folder().write("rest", std::string(8192, 'x'));
  const std::string rows = disk.folder() / "rows.jsonl";
  const Finished run = Program::run(folder.train() + Words{"--metrics", rows} + ranks(2));
  EXPECT_EQ(run.status, 1);
  expect_one_line(run.err, {"--metrics " + rows, "No space left on device"});
  EXPECT_FALSE(std::filesystem::exists(folder.output()));
}

}  // namespace faults_test
}  // namespace ofsdp
