// Program: one started command, as a user would start it, with the output caught and a limit on the
// time.
//
//   Program::run({"fsdp-run", "model.onnx"})          to its end
//   Program p({...}); p.until_output("step", 10);     while it runs; p.signal(SIGKILL); p.wait(10)
//
// stdout and stderr go into anonymous files, so a program that fills them never waits for us. The
// environment is this process's without RANK, WORLD_SIZE and the like, plus Start::environment.
//
// Ownership: owns the process, and kills it if it still runs when the object ends. Threads: one.
// Errors: a test failure (a command that cannot be started, or takes too long).
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace ofsdp {

struct Finished {
  int status = -1;  // exit status, 128 + the signal that killed it
  std::string out;  // stdout
  std::string err;  // stderr
  double seconds = 0;
  size_t peak_bytes = 0;  // most resident bytes at a time, of it or of children it waited for
};

struct Start {
  std::vector<std::string> environment = {};  // NAME=value, on top of ours
  std::string folder = {};                    // working directory; empty: ours
  uid_t user = 0;                             // to become, when not 0
  double patience = 60;                       // seconds; then it is killed and the test fails
  size_t address_space = 0;                   // bytes that it may map; 0: no other limit than ours
};

class Program {
 public:
  explicit Program(std::vector<std::string> words, const Start& start = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  static Finished run(std::vector<std::string> words, const Start& start = {});

  pid_t pid() const { return pid_; }
  std::string out() const;  // so far
  std::string err() const;
  void signal(int number) const;

  // Waits until stdout has `text`; false if the program ended or time was up before.
  bool until_output(const std::string& text, double seconds);
  Finished wait(double seconds);

 private:
  bool ended_within(double seconds);

  std::string command_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int out_ = -1;
  int err_ = -1;
  double began_;
  bool running_ = false;
  int status_ = -1;
};

// The processes with this parent that have not ended.
std::vector<pid_t> children_of(pid_t parent);
// Whether a process, which may be anybody's, is alive. An ended one that nobody waited for is not
// alive.
bool is_alive(pid_t pid);
// Processes with this text in their command line that have not ended.
std::vector<pid_t> processes_with(const std::string& text);
// Looks until the condition holds; false if it did not within the time.
bool holds_within(double seconds, const std::function<bool()>& condition);

std::vector<std::string> lines_of(const std::string& text);

}  // namespace ofsdp
