// Messages when ranks on several hosts have found each other, and one then stops before it has
// connected to the others: rank 0 prints one line that names it; the ranks that wait for it print
// none.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/rank_identity.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace hosts_meeting_test {

constexpr std::chrono::seconds kTimeout{1};

// Sends a hello, receives the others' hellos, and then stops.
[[noreturn]] void stop_after_hello(const RankIdentity& identity) {
  const auto point = rendezvous_point(identity, kTimeout);
  const auto table = find_hosts(identity, *point, kTimeout);
  while (table.ok()) pause();
  _exit(9);
}

// 0: as expected.
int connect_in_vain(const RankIdentity& identity, const std::string& expected) {
  auto connected = connect_ranks(identity, kTimeout);
  if (connected.ok()) return 3;
  const Status status = std::move(connected).status();
  const ErrorKind kind = identity.rank == 0 ? ErrorKind::kFault : ErrorKind::kPeer;
  const bool named = identity.rank != 0 || status.message().starts_with(expected);
  if (status.kind() != kind || !named) fmt::print(stderr, "found: {}\n", status.message());
  return status.kind() == kind && named ? 0 : 4;
}

TEST(OpenFiles, AreCountedBeforeRanksConnect) {
  std::vector<int> host_of;
  for (int rank = 0; rank < 1024; ++rank) host_of.push_back(rank / 2);
  const HostMap map = HostMap::make(7, host_of, std::vector<std::string>(1024, "a"));
  EXPECT_EQ(map.connections(), 2 * 511);
  EXPECT_TRUE(check_open_files(map, 10, 1099).ok());
  const Status refused = check_open_files(map, 10, 1098);
  EXPECT_EQ(refused.kind(), ErrorKind::kInput);
  EXPECT_EQ(
      refused.message(),
      "rank 7: 1022 connections to 511 other hosts: expected ulimit -n of at least 1099, found "
      "1098");
}

// On the larger host, a rank may serve several ranks.
TEST(OpenFiles, OfUnequalHostsAreCountedByRank) {
  const auto connections = [](int rank) {
    return HostMap::make(rank, {0, 0, 0, 1}, std::vector<std::string>(4, "a")).connections();
  };
  EXPECT_EQ(connections(3), 1 + 3);
  EXPECT_EQ(connections(0), 1 + 1);
  EXPECT_EQ(connections(1), 1);
}

class Stopped : public testing::TestWithParam<std::tuple<HostCounts, int>> {};
INSTANTIATE_TEST_SUITE_P(Hosts, Stopped,
                         testing::Values(std::tuple(HostCounts{2, 1}, 1),
                                         std::tuple(HostCounts{2, 1}, 2),
                                         std::tuple(HostCounts{1, 2}, 1),
                                         std::tuple(HostCounts{1, 2}, 2),
                                         std::tuple(HostCounts{1, 1, 2}, 3)));

TEST_P(Stopped, IsNamedByRank0Alone) {
  const auto& [hosts, odd] = GetParam();
  const auto ranks = identities(hosts, format_text("stopped-{}-{}", getpid(), odd));
  std::vector<pid_t> pids(ranks.size());
  pid_t& stopped = pids[static_cast<size_t>(odd)];
  stopped = fork();
  if (stopped == 0) stop_after_hello(ranks[static_cast<size_t>(odd)]);
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (pids[r] == 0) pids[r] = fork();
    if (pids[r] != 0) continue;
    _exit(connect_in_vain(ranks[r], format_text("rank {} (pid {} on ", odd, stopped)));
  }
  for (size_t r = 0; r < pids.size(); ++r) {
    int status = 0;
    if (pids[r] == stopped) continue;
    waitpid(pids[r], &status, 0);
    EXPECT_EQ(status, 0) << "rank " << r;
  }
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
}

}  // namespace hosts_meeting_test
}  // namespace ofsdp
