// Launch: a launcher in a child of the test. Its ranks are the test's own program, started again
// with `--as-rank SCENE`. The test reads the output.
//
// Ownership: owns the child, and kills it if it still runs when the object ends. Threads: one.
#pragma once

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "runtime/cli/launch/launcher.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

inline LaunchPlan plan_of(int nproc) {
  LaunchPlan plan;
  plan.options.nproc_per_node = nproc;
  return plan;
}

class Launch {
 public:
  Launch(const LaunchPlan& plan, const std::string& scene) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], 2);
      close(ends[0]);
      close(ends[1]);
      std::string flag = "--as-rank", name = scene;
      char* const argv[] = {program_invocation_name, flag.data(), name.data(), nullptr};
      auto status = launch_ranks(plan, argv);
      if (!status.ok()) fmt::print(stderr, "launcher: {}\n", status.error().message());
      const bool wrong = !status.ok() && status.error().kind() == ErrorKind::kInput;
      _exit(status.ok() ? *status : wrong ? 2 : 1);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  Launch(int nproc, const std::string& scene) : Launch(plan_of(nproc), scene) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    if (running_) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(output_);
  }

  pid_t pid() const { return pid_; }
  std::string read_line() const {
    std::string line;
    for (char c = 0; read(output_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(output_, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    running_ = false;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  bool running_ = true;
  int output_ = -1;  // read end of stdout and stderr
};

}  // namespace ofsdp
