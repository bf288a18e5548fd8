// Ranks that were told different things do not start: they name the first step that differs.
#include <gtest/gtest.h>
#include <unistd.h>

#include "kernels/base/status.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace agreement_test {

// A rank as torchrun starts it; the port keeps runs at the same time apart.
Start as_rank(int rank) {
  const int port = 20000 + static_cast<int>(getpid() % 20000);
  Start start;
  start.environment = {"MASTER_ADDR=127.0.0.1",
                       format_text("MASTER_PORT={}", port),
                       "WORLD_SIZE=2",
                       "LOCAL_WORLD_SIZE=2",
                       format_text("RANK={}", rank),
                       format_text("LOCAL_RANK={}", rank)};
  return start;
}

// The messages of both ranks, where rank 1 has `more`.
std::string said_with(const Words& more) {
  const Words command = mlp() + Words{"--min-params", "1000", "--steps", "2", "--threads", "1"};
  Program first(command, as_rank(0));
  Program second(command + more, as_rank(1));
  EXPECT_EQ(first.wait(60).status, 1);
  EXPECT_EQ(second.wait(60).status, 1);
  return first.err() + second.err();
}

TEST(Agreement, NamesTheFirstStepThatDiffers) {
  const std::string clip = said_with({"--clip-grad-norm", "1"});
  EXPECT_NE(clip.find("the schedules of ranks 0 and 1 differ, first in collective step 4: "
                      "ReduceUpdate u2 of 256 elements on rank 0, Reduce u2 of 256 elements on "
                      "rank 1"),
            std::string::npos)
      << clip;
  EXPECT_EQ(lines_of(clip).size(), 1u) << "once a run, not once a rank: " << clip;
}

TEST(Agreement, NamesUnitsOfAnotherSize) {
  const std::string units = said_with({"--min-params", "100000"});
  EXPECT_NE(units.find("first in collective step 0: Acquire u2 of 256 elements on rank 0, Acquire "
                       "u0 of 4736 elements on rank 1"),
            std::string::npos)
      << units;
}

}  // namespace agreement_test
}  // namespace ofsdp
