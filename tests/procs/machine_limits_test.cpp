// Runs on a machine that gives less than it has: cgroup memory, descriptors, threads.
#include <unistd.h>

#include <cstdlib>

#include "fsdp/comm/store/stream_socket.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace machine_limits_test {

using namespace onnx_bytes;
using testing::AnyOf;
using testing::HasSubstr;

// A memory cgroup (v1) below this process's; `path` is empty if none can be made.
class MemoryGroup {
 public:
  MemoryGroup() {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
      const size_t at = line.find(":memory:");
      if (at == std::string::npos) continue;
      path_ = format_text("/sys/fs/cgroup/memory{}/ofsdp_test_{}", line.substr(at + 8), getpid());
    }
    std::error_code error;
    if (path_.empty() || !std::filesystem::create_directory(path_, error)) path_.clear();
  }
  ~MemoryGroup() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  bool exists() const { return !path_.empty(); }
  void allow(int64_t bytes) const {
    std::ofstream(path_ + "/memory.limit_in_bytes") << bytes << std::flush;
  }
  Finished run(const Words& words) const {
    const std::string join = "echo $$ > " + path_ + "/cgroup.procs && exec \"$@\"";
    return Program::run(Words{"/bin/sh", "-c", join, "sh"} + words);
  }

 private:
  std::string path_;
};

// Activations: about a hundred bytes a sample.
Words large_batch(const ModelFolder& folder, const char* command) {
  return fsdp_run({command, folder.model(), "--data", "synthetic", "--loss", "cross_entropy",
                   "--steps", "1", "--batch-size", "3000000"});
}

TEST(MachineLimits, MemoryThatACgroupDoesNotAllow) {
  const MemoryGroup group;
  if (!group.exists()) GTEST_SKIP() << "no memory cgroup can be made here";
  const ModelFolder folder;
  group.allow(100 << 20);
  for (const int count : {1, 2}) {
    const Finished refused = group.run(large_batch(folder, "train") + ranks(count));
    EXPECT_EQ(refused.status, 2) << refused.err;
    expect_one_line(refused.err, {"bytes a rank", format_text("for {} rank", count),
                                  "its cgroup allows 104857600 bytes"});
  }
  const Finished plan = group.run(large_batch(folder, "plan"));
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("a run would be refused"));
}

// The plan fits, but the processes need more.
TEST(MachineLimits, ARankThatIsKilledForLackOfMemory) {
  const MemoryGroup group;
  if (!group.exists()) GTEST_SKIP() << "no memory cgroup can be made here";
  const ModelFolder folder;
  group.allow(100 << 20);
  const Words train = large_batch(folder, "train") + ranks(2);
  const std::string said = group.run(train).err;
  const size_t at = said.find("bytes a rank, ");
  ASSERT_NE(at, std::string::npos) << said;
  group.allow(std::atoll(said.c_str() + at + 14) + (2 << 20));
  const Finished killed = group.run(train);
  EXPECT_EQ(killed.status, 1) << killed.err;
  EXPECT_THAT(killed.err, AnyOf(HasSubstr("oom_kill"), HasSubstr("no memory for")));
}

// 300 biases, each in a separate file.
void many_files(const ModelFolder& folder) {
  SmallModel model = linear_model();
  std::string sum = "logits";
  for (int i = 0; i < 300; ++i) {
    const std::string name = format_text("bias{}", i), file = format_text("data{}.bin", i);
    folder.write(file, bytes_of(std::vector<float>{0.f, 0.f, 0.f}));
    model.initializers.push_back(tensor(name, kFloat, {3}, external(file, "0", "12")));
    const std::string next = format_text("sum{}", i);
    model.nodes.push_back(node("Add", {sum, name}, {next}, "add_" + name));
    sum = next;
  }
  model.outputs = {declared(sum, {-1, 3})};
  folder.write("model.onnx", model.bytes());
}

Finished limited(const std::string& limit, const Words& words) {
  return Program::run(Words{"/bin/sh", "-c", limit + " && exec \"$@\"", "sh"} + words);
}

TEST(MachineLimits, FilesUpToTheHardLimit) {
  const ModelFolder folder;
  many_files(folder);
  const Words train = fsdp_run({folder.model(), "--loss", "cross_entropy", "--steps", "2"});
  const Finished trained = limited("ulimit -S -n 256", train);
  EXPECT_EQ(trained.status, 0) << trained.err;
  const Finished refused = limited("ulimit -n 256", train);
  EXPECT_EQ(refused.status, 1);
  expect_one_line(refused.err, {"Too many open files"});
}

// `rank`: the rank that gets no more threads, or "" for all.
Start without_threads(int made, const std::string& rank = "") {
  Start start{
      .environment = {"LD_PRELOAD=" OFSDP_FAIL_THREADS, format_text("FAIL_THREADS={}", made)}};
  if (!rank.empty()) start.environment.push_back("FAIL_RANK=" + rank);
  return start;
}

TEST(MachineLimits, ThreadsThatCannotStart) {
  const ModelFolder folder;
  const Words train = folder.train() + Words{"--threads", "1"};
  const Words saves = train + Words{"--checkpoint-dir", folder / "ck"};
  struct Case {
    Words words;
    std::string what;
    Start start;
  };
  const std::vector<Case> all = {
      {train, "the reader of data", without_threads(0)},
      {saves, "the writer of checkpoints", without_threads(0)},
      {train + ranks(2), "the monitor of peers", without_threads(0)},
      {train + ranks(2), "the monitor of peers", without_threads(0, "0")},
      {train + ranks(2), "the monitor of peers", without_threads(0, "1")},
      {train + ranks(2), "the reader of data", without_threads(1, "1")},
      {train + Words{"--nnodes", "2", "--rdzv-endpoint", format_text("127.0.0.1:{}", free_port())},
       "the coordinator of launchers", without_threads(0)}};
  for (const Case& one : all) {
    const Finished run = Program::run(one.words, one.start);
    EXPECT_EQ(run.status, 1) << run.err;
    expect_one_line(run.err, {one.what, "cannot start"});
  }
}

}  // namespace machine_limits_test
}  // namespace ofsdp
