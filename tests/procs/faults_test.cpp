// Failures while a run trains: ranks and launchers that die, stop or are told to end, a disk that
// is full. The run ends in time, says once who failed, and leaves no process and no file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/support/mnist_images.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace faults_test {

std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Three ranks that would train for ever, past their first updates.
class EndlessRun {
 public:
  explicit EndlessRun(const Words& more = {})
      : before_(shared_memory()),
        program_(fsdp_run({images_.model(), "--data", images_.path(), "--batch-size", "8",
                           "--epochs", "100000", "--log-interval", "1", "--output", output()}) +
                 mnist_settings() + ranks(3) + more) {
    EXPECT_TRUE(program_.until_output("step 3/", 30)) << program_.err();
    ranks_ = children_of(program_.pid());
    std::ranges::sort(ranks_);  // started in this order
    EXPECT_EQ(ranks_.size(), 3u);
  }

  Program& program() { return program_; }
  pid_t rank(size_t number) const { return ranks_.at(number); }

  void expect_nothing_left() {
    for (const pid_t pid : ranks_) {
      EXPECT_TRUE(holds_within(5, [&] { return !is_alive(pid); })) << "rank of pid " << pid;
    }
    EXPECT_EQ(shared_memory(), before_);
    const onnx_bytes::Folder& folder = output_;
    EXPECT_EQ(folder.files(), 0u) << "a part of the output was left";
  }

 private:
  std::string output() const { return output_ / "trained.onnx"; }

  FirstImages images_;
  onnx_bytes::Folder output_;
  std::set<std::string> before_;
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
  for (const int number : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(strsignal(number));
    EndlessRun run;
    kill(run.program().pid(), number);
    const Finished finished = run.program().wait(10);
    EXPECT_EQ(finished.status, 1);
    EXPECT_LE(lines_of(finished.err).size(), 1u) << finished.err;
    run.expect_nothing_left();
  }
}

// ---- Ranks that somebody else has started ----

Start as_rank(int rank, int world, int port) {
  return {.environment = {format_text("RANK={}", rank), format_text("LOCAL_RANK={}", rank),
                          format_text("WORLD_SIZE={}", world),
                          format_text("LOCAL_WORLD_SIZE={}", world), "MASTER_ADDR=127.0.0.1",
                          format_text("MASTER_PORT={}", port)}};
}

int some_port() { return 20000 + getpid() % 20000; }

// The step lines without their times.
std::vector<std::string> losses_in(const std::string& metrics) {
  std::vector<std::string> losses;
  for (const std::string& line : lines_of(onnx_bytes::content(metrics))) {
    losses.push_back(line.substr(0, line.find(",\"step_ms\"")));
  }
  if (!losses.empty()) losses.pop_back();  // the end
  return losses;
}

TEST(TorchrunTest, RanksStartedByHandTrainAlike) {
  const RunFolder folder;
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

// ---- A disk that is full ----

// A file system of few bytes, in a namespace of this process's own.
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
  const TinyDisk disk("16k");  // of 20 that the model has
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
  const RunFolder folder;
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
