// A command started twice on this machine, as if on two hosts that meet.
//
// Ownership: owns both launchers. Threads: one. Errors: test failures.
#pragma once

#include "kernels/base/text.h"
#include "tests/support/await_meeting.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

class TwoLaunchers {
 public:
  // The first has rank 0 and hosts the meeting, since it starts first and waits.
  TwoLaunchers(const Words& words, int ranks_of_first, int ranks_of_second = 1) {
    const int port = free_port();
    const Words meet =
        words + Words{"--nnodes", "2", "--rdzv-endpoint", format_text("127.0.0.1:{}", port)};
    first_ = std::make_unique<Program>(meet + ranks(ranks_of_first) + Words{"--node-rank", "0"});
    await_meeting(port);
    second_ = std::make_unique<Program>(meet + ranks(ranks_of_second) + Words{"--node-rank", "1"});
  }
  Program& first() { return *first_; }
  Program& second() { return *second_; }

 private:
  std::unique_ptr<Program> first_, second_;
};

}  // namespace ofsdp
