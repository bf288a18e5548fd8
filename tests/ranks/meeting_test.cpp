// Messages when ranks cannot meet: missing ranks, duplicates, ranks from another world.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace meeting_test {

// Ranks that claim any identity, one process each.
struct Stranger {
  RankIdentity identity;
  std::string expected;  // part of the message
  ErrorKind kind;
};

void expect_meeting_fails(const std::vector<Stranger>& strangers) {
  std::vector<pid_t> pids;
  for (const Stranger& stranger : strangers) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto connected = connect_ranks(stranger.identity, std::chrono::seconds(1));
      if (connected.ok()) _exit(3);
      const Status& error = connected.error();
      const bool right = error.kind() == stranger.kind &&
                         error.message().find(stranger.expected) != std::string::npos;
      if (!right) fmt::print(stderr, "found: {}\n", error.message());
      _exit(right ? 0 : 4);
    }
    pids.push_back(pid);
  }
  for (size_t i = 0; i < pids.size(); ++i) {
    int status = 0;
    waitpid(pids[i], &status, 0);
    EXPECT_EQ(status, 0) << "stranger " << i << ", expected: " << strangers[i].expected;
  }
}

std::string meeting_name(const char* test) { return format_text("{}-{}", test, getpid()); }

TEST(Meeting, SaysWhichRanksAreMissing) {
  const std::string name = meeting_name("missing");
  expect_meeting_fails(
      {{{0, 4, 0, name, ""}, "rank 1, 3 did not arrive at rendezvous", ErrorKind::kFault},
       {{2, 4, 2, name, ""}, "", ErrorKind::kPeer}});
  expect_meeting_fails({{{1, 2, 1, name, ""}, "rank 0 did not arrive", ErrorKind::kFault}});
}

TEST(Meeting, RefusesTwoOfOneRank) {
  const std::string name = meeting_name("twice");
  expect_meeting_fails(
      {{{0, 3, 0, name, ""}, "two processes say that they are rank 1", ErrorKind::kInput},
       {{1, 3, 1, name, ""}, "", ErrorKind::kPeer},
       {{1, 3, 1, name, ""}, "", ErrorKind::kPeer}});
}

TEST(Meeting, RefusesAnotherWorld) {
  const std::string name = meeting_name("world");
  expect_meeting_fails({{{0, 2, 0, name, ""}, "expects 3 ranks at rendezvous", ErrorKind::kInput},
                        {{1, 3, 1, name, ""}, "", ErrorKind::kPeer}});
}

TEST(Meeting, RunsWithLongNamesDoNotMix) {
  // The names differ only beyond the part that fits into a socket's name.
  const std::string name(200, 'x');
  for (const char* end : {"a", "b"}) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto connected =
          connect_ranks(RankIdentity{end[0] == 'b', 2, 0, name + end, ""}, std::chrono::seconds(1));
      _exit(connected.ok() ? 3 : 0);
    }
  }
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    wait(&status);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace meeting_test
}  // namespace ofsdp
