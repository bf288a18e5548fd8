// The other ranks' messages when one dies, hangs, fails or leaves too early, and how soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "fsdp/comm/rank_identity.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace communicator_fault_test {

using testing::ContainsRegex;
using testing::HasSubstr;

void idle() {
  while (true) pause();
}

// Reduces for ever; `odd` leaves at step 7 and does `odd_does` instead.
RankProcesses::Body reducing(int odd, std::function<Status(Communicator&)> odd_does) {
  return [=](Communicator& c, MemoryLedger& ledger) -> Status {
    auto base = c.allocate_shared(ledger, 64 * static_cast<size_t>(c.size()));
    if (!base.ok()) return std::move(base).status();
    auto ignore = [](int64_t, std::span<float>) {};
    for (int64_t step = 1;; ++step) {
      const CollectiveSite site{"reduce-scatter", 2, step};
      if (c.rank() == odd && step == 7) return odd_does(c);
      OFSDP_RETURN_IF_ERROR(c.acquire(2, {0, c.size()}, site));
      c.post(2, {0, c.size()}, {0, 16});
      OFSDP_RETURN_IF_ERROR(c.reduce_scatter(2, {0, c.size()}, {0, 16}, ignore, site));
    }
  };
}

Status die(Communicator&) {
  kill(getpid(), SIGKILL);
  return {};
}

// Exactly one rank other than `odd` claims the failure, with a fault; the others have heard of
// it.
void expect_one_reporter(RankProcesses& ranks, int world, int odd, const std::string& message,
                         double within) {
  int reporters = 0;
  const double begin = now_seconds();
  for (int rank = 0; rank < world; ++rank) {
    if (rank == odd) continue;
    EXPECT_EQ(WEXITSTATUS(ranks.wait(rank)), 1) << "rank " << rank;
    const RankReport& report = ranks.report(rank);
    ASSERT_TRUE(report.failed) << "rank " << rank;
    EXPECT_LT(report.ended, begin + within) << "rank " << rank;
    reporters += report.claimed;
    if (report.claimed) {
      EXPECT_EQ(report.kind, ErrorKind::kFault);
    }
    if (report.kind == ErrorKind::kFault) {
      EXPECT_THAT(report.message, HasSubstr(message));
    }
  }
  EXPECT_EQ(reporters, 1);
}

class Death : public testing::TestWithParam<std::tuple<HostCounts, int>> {};
INSTANTIATE_TEST_SUITE_P(OneHostAndDead, Death,
                         testing::Values(std::tuple(2, 0), std::tuple(2, 1), std::tuple(3, 0),
                                         std::tuple(3, 2), std::tuple(5, 3)));
INSTANTIATE_TEST_SUITE_P(
    HostsAndDead, Death,
    testing::Values(std::tuple(HostCounts{1, 1}, 0), std::tuple(HostCounts{1, 1}, 1),
                    std::tuple(HostCounts{2, 2}, 0), std::tuple(HostCounts{2, 2}, 3),
                    std::tuple(HostCounts{1, 1, 1}, 0), std::tuple(HostCounts{2, 1, 2}, 2),
                    std::tuple(HostCounts{2, 2}, 1), std::tuple(HostCounts{3, 3}, 0),
                    std::tuple(HostCounts{2, 1, 2}, 0), std::tuple(HostCounts{2, 2, 2}, 1)));

TEST_P(Death, IsNoticedByWaitingRanks) {
  const auto& [hosts, dead] = GetParam();
  const int world = hosts.world();
  RankProcesses ranks(hosts, reducing(dead, die));
  const pid_t pid = ranks.pid(dead);
  EXPECT_EQ(WTERMSIG(ranks.wait(dead)), SIGKILL);
  expect_one_reporter(ranks, world, dead,
                      format_text("rank {} (pid {} on {}) ", dead, pid, host_name()), 3);
  for (int rank = 0; rank < world; ++rank) {
    if (rank == dead || !ranks.report(rank).claimed) continue;
    // A rank may still be at the end of step 6 when the other one dies in step 7. Across hosts,
    // data from the dead rank for step 6 may be lost.
    const char* const step = hosts.counts.size() == 1 ? "[67]" : "[0-9]";
    EXPECT_THAT(ranks.report(rank).message,
                ContainsRegex(format_text("of unit 2 at step {}", step)));
  }
}

TEST(DeathOfOne, IsNoticedAtTheNextCallOfARankThatDoesNotWait) {
  RankProcesses ranks(2, [](Communicator& c, MemoryLedger&) -> Status {
    if (c.rank() == 1) return die(c);
    while (true) {
      usleep(1000);
      OFSDP_RETURN_IF_ERROR(
          c.all_gather({0, c.size()}, {}, nullptr, DType::kFloat32, {"gather", 5, 3}));
    }
  });
  const pid_t pid = ranks.pid(1);
  EXPECT_EQ(WTERMSIG(ranks.wait(1)), SIGKILL);
  expect_one_reporter(
      ranks, 2, 1,
      format_text("rank 1 (pid {} on {}) died while rank 0 waited in gather of unit 5 at step 3",
                  pid, host_name()),
      3);
}

TEST(DeathOfOne, IsNoticedWhileSegmentsAreExchanged) {
  for (const int dead : {0, 1}) {
    RankProcesses ranks(3, [=](Communicator& c, MemoryLedger& ledger) -> Status {
      if (c.rank() == dead) return die(c);
      auto base = c.allocate_shared(ledger, 4096);
      return base.ok() ? Status() : std::move(base).status();
    });
    const pid_t pid = ranks.pid(dead);
    EXPECT_EQ(WTERMSIG(ranks.wait(dead)), SIGKILL);
    expect_one_reporter(ranks, 3, dead,
                        format_text("rank {} (pid {} on {}) died", dead, pid, host_name()), 3);
  }
}

TEST(Hang, EndsAtTheTimeoutAndNamesTheRank) {
  auto stop = [](Communicator&) -> Status {
    raise(SIGSTOP);
    return {};
  };
  RankProcesses ranks(3, reducing(1, stop), std::chrono::seconds(1));
  expect_one_reporter(
      ranks, 3, 1,
      format_text("rank 1 (pid {} on {}) did not arrive within 1 s: reduce-scatter of "
                  "unit 2, step 7",
                  ranks.pid(1), host_name()),
      4);
}

TEST(Hang, TheRankAtTheEndOfAChainOfWaitsIsNamed) {
  // Rank 0 waits for rank 1; rank 1 waits elsewhere for rank 2, a little later.
  RankProcesses ranks(
      3,
      [](Communicator& c, MemoryLedger& ledger) -> Status {
        OFSDP_RETURN_IF_ERROR(c.allocate_shared(ledger, 4096).status());
        if (c.rank() == 2) idle();
        if (c.rank() == 0) return c.barrier({"barrier", -1, 4});
        usleep(400'000);
        c.post(0, {0, c.size()}, {});
        auto ignore = [](int64_t, std::span<float>) {};
        return c.reduce_scatter(0, {0, c.size()}, {}, ignore, {"reduce-scatter", 0, 3});
      },
      std::chrono::seconds(1));
  expect_one_reporter(
      ranks, 3, 2,
      format_text("rank 2 (pid {} on {}) did not arrive within 1 s: barrier, step 4", ranks.pid(2),
                  host_name()),
      4);
}

TEST(Hang, ARankThatWasStoppedWhileItWaitedIsNamed) {
  // Rank 2 is stopped in a wait for rank 0, which comes. Then rank 1 waits for rank 0, and rank 0
  // for rank 2.
  RankProcesses ranks(
      3,
      [](Communicator& c, MemoryLedger& ledger) -> Status {
        OFSDP_RETURN_IF_ERROR(c.allocate_shared(ledger, 4096).status());
        const double pid = getpid();
        std::array<double, 3> pids{};
        OFSDP_RETURN_IF_ERROR(c.exchange({&pid, 1}, pids, {"exchange", -1, 0}));
        if (c.rank() == 0) {
          usleep(300'000);
          kill(static_cast<pid_t>(pids[2]), SIGSTOP);
          usleep(50'000);
        }
        OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 1}));
        if (c.rank() == 2) return {};
        c.post(0, {0, c.size()}, {});
        if (c.rank() == 1) return c.barrier({"barrier", -1, 2});
        auto ignore = [](int64_t, std::span<float>) {};
        return c.reduce_scatter(0, {0, c.size()}, {}, ignore, {"reduce-scatter", 0, 2});
      },
      std::chrono::seconds(1));
  expect_one_reporter(
      ranks, 3, 2,
      format_text("rank 2 (pid {} on {}) did not arrive within 1 s", ranks.pid(2), host_name()), 4);
}

class AcrossHosts : public testing::TestWithParam<HostCounts> {};
INSTANTIATE_TEST_SUITE_P(Hosts, AcrossHosts,
                         testing::Values(HostCounts{1, 1}, HostCounts{2, 2}, HostCounts{1, 1, 2}));

TEST_P(AcrossHosts, AStoppedRankIsNamedOnce) {
  auto stop = [](Communicator&) -> Status {
    raise(SIGSTOP);
    return {};
  };
  const int world = GetParam().world();
  RankProcesses ranks(GetParam(), reducing(world - 1, stop), std::chrono::seconds(1));
  expect_one_reporter(ranks, world, world - 1,
                      format_text("rank {} (pid {} on ", world - 1, ranks.pid(world - 1)), 6);
}

// Rank 0 waits for rank 1 on a connection, rank 2 for the host of both.
TEST(StoppedAcrossHosts, WhileSegmentsAreExchangedIsNamed) {
  for (const int stopped : {0, 1, 2}) {
    RankProcesses ranks(
        HostCounts{2, 1},
        [=](Communicator& c, MemoryLedger& ledger) -> Status {
          if (c.rank() == stopped) raise(SIGSTOP);
          auto base = c.allocate_shared(ledger, 4096);
          if (!base.ok()) return std::move(base).status();
          return c.barrier({"loading barrier", -1, 0});
        },
        std::chrono::seconds(1));
    expect_one_reporter(ranks, 3, stopped,
                        format_text("rank {} (pid {} on ", stopped, ranks.pid(stopped)), 6);
  }
}

// Rank 0 fetches for both and waits until both have read; rank 2 waits for neither.
TEST(StoppedAcrossHosts, WhileOthersFetchForItIsNamed) {
  RankProcesses ranks(
      HostCounts{2, 1},
      [](Communicator& c, MemoryLedger& ledger) -> Status {
        auto base = c.allocate_shared(ledger, 4096);
        if (!base.ok()) return std::move(base).status();
        std::vector<float> all(3 * 16);
        const ShardSource source{.offset = 0, .numel = 16};
        for (int64_t step = 1;; ++step) {
          if (c.rank() == 1 && step == 7) raise(SIGSTOP);
          OFSDP_RETURN_IF_ERROR(c.all_gather({0, 3}, source,
                                             reinterpret_cast<std::byte*>(all.data()),
                                             DType::kFloat32, {"all-gather", 2, step}));
        }
      },
      std::chrono::seconds(1));
  expect_one_reporter(ranks, 3, 1, format_text("rank 1 (pid {} on ", ranks.pid(1)), 6);
}

TEST(StoppedAcrossHosts, AfterItsLastCollectiveIsNamed) {
  RankProcesses ranks(
      HostCounts{1, 1},
      [](Communicator& c, MemoryLedger&) -> Status {
        OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
        if (c.rank() == 1) raise(SIGSTOP);
        return {};
      },
      std::chrono::seconds(1));
  expect_one_reporter(ranks, 2, 1, format_text("rank 1 (pid {} on ", ranks.pid(1)), 6);
}

TEST_P(AcrossHosts, AFailureIsClaimedOnceAndEndsAll) {
  const int world = GetParam().world();
  RankProcesses ranks(GetParam(),
                      reducing(1, [](Communicator&) { return input_error("label 12 of 10"); }));
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_EQ(WEXITSTATUS(ranks.wait(rank)), 2) << "rank " << rank;
    EXPECT_EQ(ranks.report(rank).claimed, rank == 1) << "rank " << rank;
    EXPECT_EQ(ranks.report(rank).kind, rank == 1 ? ErrorKind::kInput : ErrorKind::kPeer)
        << ranks.report(rank).message;
  }
}

TEST_P(AcrossHosts, FailuresOfAllRanksAtOnceAreClaimedByOne) {
  const int world = GetParam().world();
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger&) -> Status {
    OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
    return fault("loss is NaN");
  });
  int claimed = 0;
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_EQ(WEXITSTATUS(ranks.wait(rank)), 1);
    claimed += ranks.report(rank).claimed;
  }
  EXPECT_EQ(claimed, 1);
}

TEST_P(AcrossHosts, LeavingWhileOthersWaitIsNamed) {
  const int odd = GetParam().world() - 1;
  RankProcesses ranks(GetParam(), reducing(odd, [](Communicator&) { return Status(); }));
  expect_one_reporter(ranks, GetParam().world(), odd,
                      format_text("rank {} (pid {} on ", odd, ranks.pid(odd)), 5);
  ranks.wait(odd);
}

TEST(Failure, IsClaimedOnceAndEndsTheOthersWithItsStatus) {
  RankProcesses ranks(4, reducing(2, [](Communicator&) { return input_error("label 12 of 10"); }));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(WEXITSTATUS(ranks.wait(rank)), 2) << "rank " << rank;
    const RankReport& report = ranks.report(rank);
    EXPECT_EQ(report.claimed, rank == 2);
    EXPECT_EQ(report.exit_status, 2);
    EXPECT_EQ(report.kind, rank == 2 ? ErrorKind::kInput : ErrorKind::kPeer) << report.message;
  }
}

TEST(Failure, OfAllRanksAtOnceIsClaimedByOne) {
  RankProcesses ranks(5, [](Communicator& c, MemoryLedger&) -> Status {
    OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
    return fault("loss is NaN");
  });
  int claimed = 0;
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(WEXITSTATUS(ranks.wait(rank)), 1);
    claimed += ranks.report(rank).claimed;
  }
  EXPECT_EQ(claimed, 1);
}

TEST(Leaving, IsNoDeathForRanksThatNeedItNoMore) {
  RankProcesses ranks(3, [](Communicator& c, MemoryLedger&) -> Status {
    OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
    if (c.rank() == 1) return {};
    usleep(200'000);
    return c.all_gather({0, c.size()}, {}, nullptr, DType::kFloat32, {"gather", 0, 1});
  });
  ranks.expect_success();
}

TEST(Leaving, WhileOthersWaitIsNamedAtOnce) {
  RankProcesses ranks(2, reducing(1, [](Communicator&) { return Status(); }));
  const pid_t pid = ranks.pid(1);
  EXPECT_EQ(ranks.wait(1), 0);
  expect_one_reporter(
      ranks, 2, 1,
      format_text("rank 1 (pid {} on {}) had ended when rank 0 waited", pid, host_name()), 2);
}

}  // namespace communicator_fault_test
}  // namespace ofsdp
