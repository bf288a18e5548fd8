// The real command as one rank of a run on several hosts, by torchrun's variables: the words, the
// process, and the file that two ranks write on one host.
//
// Ownership: a Running owns its process and the file with the output. Threads: one. Errors: test
// failures.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/trajectory.h"

namespace ofsdp {

inline std::string scratch(const std::string& name) {
  return format_text("{}hosts-{}-{}", testing::TempDir(), getpid(), name);
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string line_of(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += format_text("'{}' ", word);
  return line;
}

inline Words split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// A small transformer with the settings of the reference, which has 24 steps.
inline Words bert(const std::string& steps, const std::string& timeout = "9") {
  return fsdp_run({fixture("bert_tiny/model.onnx")}) +
         split(
             "--loss cross_entropy --optimizer adamw --lr 0.001 --weight-decay 0.01 "
             "--lr-schedule linear --warmup-steps 4 --total-steps 24 --clip-grad-norm 1 "
             "--freeze bert.embeddings.position_ids --freeze bert.embeddings.token_type_ids "
             "--no-shuffle --global-batch-size 12 --epochs 1000000 --threads 1 "
             "--steps " +
             steps + " --timeout " + timeout);
}

// One process under a shell, with the output in a file. Ends after a minute whatever happens.
class Running {
 public:
  Running(const std::string& name, const std::string& line) : path_(scratch(name)) {
    pid_ = fork();
    if (pid_ == 0) {
      const std::string whole = format_text("exec timeout -s KILL 60 {} >{} 2>&1", line, path_);
      execl("/bin/sh", "sh", "-c", whole.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
  }
  ~Running() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    unlink(path_.c_str());
  }
  Running(const Running&) = delete;

  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string said() const { return read_text(path_); }
  // Waits until the output has this text.
  void expect(const std::string& text) const {
    for (int i = 0; i < 3000 && said().find(text) == std::string::npos; ++i) usleep(10'000);
    EXPECT_THAT(said(), testing::HasSubstr(text));
  }

 private:
  std::string path_;
  pid_t pid_ = -1;
};

inline std::string variables(int rank, int world, const std::string& address, int port) {
  return format_text(
      "env RANK={} WORLD_SIZE={} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK={} "
      "GROUP_WORLD_SIZE={} MASTER_ADDR={} MASTER_PORT={} ",
      rank, world, rank, world, address, port);
}

// The file from two ranks on one host: one rank a host sums in the same order.
inline std::string written_on_one_host(const Words& command) {
  const testing_data::TempFolder folder;
  const std::string out = folder.path() + "/trained.onnx";
  Running run("reference", line_of(command + ranks(2) + Words{"--output", out}));
  EXPECT_EQ(run.wait(), 0) << run.said();
  return read_text(out);
}

}  // namespace ofsdp
