// Sizes that grow with the ranks in a run: the table of a meeting, a rank's connections,
// open files and staging for transfers, and names that must differ. With
// OFSDP_RANKS_OF_HOSTS=64,8 ranks on so many hosts meet, and each reports its figures
// (bench/many_ranks.sh).
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "fsdp/comm/hosts/host_collectives.h"
#include "fsdp/comm/hosts/host_rendezvous.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace many_ranks_test {

constexpr int kHosts = 512, kHere = 8;
static_assert(kHosts * kHere == kMaxRanks);

HostTable table_of_most_ranks() {
  HostTable table;
  table.token = ~uint64_t{0};
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    const int host = rank / kHere;
    const std::string address =
        host == 0 ? "" : format_text("10.100.{}.{}", host / 256, host % 256);
    table.entries.push_back(
        {host, 4000000 + rank, 30000 + rank, address, format_text("compute-{}.cluster", host)});
  }
  return table;
}

TEST(TableOfRanks, IsReadAsItWasWritten) {
  const HostTable written = table_of_most_ranks();
  HostTable read;
  ASSERT_TRUE(read_table(table_value(written), kMaxRanks, read));
  EXPECT_EQ(read.token, written.token);
  ASSERT_EQ(read.entries.size(), written.entries.size());
  for (size_t r = 0; r < read.entries.size(); ++r) {
    const HostEntry &a = read.entries[r], &b = written.entries[r];
    EXPECT_TRUE(a.host == b.host && a.pid == b.pid && a.port == b.port && a.name == b.name &&
                a.address == b.address)
        << "rank " << r;
  }
}

TEST(TableOfRanks, HasFewBytesARank) {
  EXPECT_LT(Store::message("table", table_value(table_of_most_ranks())).size(), kMaxRanks * 32u);
}

TEST(TableOfRanks, IsRefusedIfItIsDamaged) {
  const Json good = table_value(table_of_most_ranks());
  const auto refused = [&good](const char* member, const Json& value) {
    Json bad = good;
    bad[member] = value;
    HostTable table;
    return !read_table(bad, kMaxRanks, table);
  };
  Json ports = good["ports"], places = good["at"], texts = good["places"];
  ports[7] = 65536;
  places[7] = kHosts;
  texts[7] = {{"name", "a"}};
  EXPECT_TRUE(refused("ports", ports));
  EXPECT_TRUE(refused("at", places));
  EXPECT_TRUE(refused("places", texts));
  EXPECT_TRUE(refused("places", 3));
  EXPECT_TRUE(refused("hosts", Json::array({0, 1})));
  EXPECT_TRUE(refused("pids", nullptr));
  EXPECT_TRUE(refused("token", "a"));
  HostTable table;
  EXPECT_FALSE(read_table(good, kMaxRanks - 1, table));
}

HostMap map_of_most_ranks(int rank) {
  std::vector<int> host_of;
  for (int r = 0; r < kMaxRanks; ++r) host_of.push_back(r / kHere);
  return HostMap::make(rank, host_of, std::vector<std::string>(kMaxRanks, "a"));
}

TEST(OpenFilesOfManyRanks, AreNoMoreThanTwoAHost) {
  for (const int rank : {0, 7, kMaxRanks - 1}) {
    EXPECT_EQ(map_of_most_ranks(rank).connections(), 2 * (kHosts - 1));
  }
}

// Groups with strides above ten bits once had the names of other groups.
TEST(PieceNames, DifferForGroupsOfManyRanks) {
  std::set<std::pair<uint64_t, uint64_t>> names;
  size_t made = 0;
  for (const RankGroup& group :
       {RankGroup{0, 4096, 1}, RankGroup{0, 2048, 1}, RankGroup{2048, 2048, 1},
        RankGroup{0, 4, 1024}, RankGroup{1024, 2, 1024}, RankGroup{0, 2, 2048},
        RankGroup{2047, 2, 2048}, RankGroup{0, 4, 1}, RankGroup{0, 1, 1}}) {
    for (const uint64_t gathers : {1u, 2u, 1u << 18, 1u << 30}) {
      for (const int64_t piece : {0, 1, 1 << 14, (1 << 23) - 1}) {
        const PieceName name = PieceName::make(group, gathers, piece);
        names.insert({name.group, name.filled});
        EXPECT_NE(name.filled, 0u);
        ++made;
      }
    }
  }
  EXPECT_EQ(names.size(), made);
}

TEST(PieceNames, NameThePieceInASlotOfAnotherGroup) {
  const PieceName mine = PieceName::make({0, 4, 1024}, 3, 5);
  const PieceName other = PieceName::make({0, 2, 2048}, 3, 5);
  EXPECT_EQ(mine.filled, other.filled);
  FetchedSlot slot;
  slot.group = other.group;
  slot.filled = other.filled;
  EXPECT_TRUE(other.is_in(slot));
  EXPECT_FALSE(mine.is_in(slot));
  slot.filled = 0;
  EXPECT_FALSE(other.is_in(slot));
}

TEST(StagingOfManyHosts, HasTwelveMebibytesOrABlockABuffer) {
  constexpr size_t kApart = size_t{6} << 20;  // fetch slots and outgoing buffers
  for (int hosts = 2; hosts <= 193; ++hosts) {
    EXPECT_LE(HostStaging::bytes(hosts), kApart + (size_t{12} << 20)) << hosts << " hosts";
    EXPECT_GE(HostStaging::incoming(hosts), 2 * (hosts - 1));
  }
  EXPECT_EQ(HostStaging::incoming_bytes(13), size_t{256} << 10) << "as it was";
  EXPECT_EQ(HostStaging::bytes(kHosts), kApart + 4 * 511 * (size_t{16} << 10));
}

// ---- A meeting of ranks ----

// Counts this process's open files by kind: "socket", "pipe", ...
std::map<std::string, int> open_files_by_kind() {
  std::map<std::string, int> found;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[256] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof target - 1) <= 0) continue;
    const std::string text = target;
    ++found[text.substr(0, text.find(':'))];
  }
  closedir(folder);
  return found;
}

struct Figures {
  int sockets, pipes;
  double met, exchanged;  // seconds
};

// All ranks exchange numbers, and each reports the count of open files.
Status exchange_figures(Communicator& c, double began, int before, Figures* figures) {
  Figures& mine = figures[c.rank()];
  mine.met = now_seconds() - began;
  std::vector<double> all(static_cast<size_t>(c.size()));
  const double number = c.rank() + 1;
  OFSDP_RETURN_IF_ERROR(c.exchange({&number, 1}, all, {"exchange", -1, 1}));
  mine.exchanged = now_seconds() - began - mine.met;
  auto open = open_files_by_kind();
  mine.sockets = open["socket"] - before;
  mine.pipes = open["pipe"];
  const double expected = 0.5 * c.size() * (c.size() + 1);
  if (std::accumulate(all.begin(), all.end(), 0.0) != expected) return fault("other numbers");
  return c.barrier({"barrier", -1, 2});
}

// "64,8": 64 hosts with 8 ranks each.
HostCounts hosts_asked_for() {
  int hosts = 4, here = 4;
  if (const char* text = std::getenv("OFSDP_RANKS_OF_HOSTS")) {
    std::sscanf(text, "%d,%d", &hosts, &here);
  }
  HostCounts counts{0};
  counts.counts.assign(static_cast<size_t>(hosts), here);
  return counts;
}

TEST(ManyRanks, MeetAndExchange) {
  const HostCounts hosts = hosts_asked_for();
  const int others = static_cast<int>(hosts.counts.size()) - 1, here = hosts.counts[0];
  const auto world = static_cast<size_t>(hosts.world());
  auto* const figures = static_cast<Figures*>(mmap(
      nullptr, sizeof(Figures) * world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const double began = now_seconds();
  const int before = open_files_by_kind()["socket"];
  RankProcesses ranks(
      hosts,
      [&](Communicator& c, MemoryLedger&) { return exchange_figures(c, began, before, figures); },
      std::chrono::seconds(120));
  ranks.expect_success();
  double met = 0, exchanged = 0;
  for (size_t r = 0; r < world; ++r) {
    const bool first = r % static_cast<size_t>(here) == 0;  // on the host
    // Rank 0's connections to all others are closed once all have met.
    EXPECT_EQ(figures[r].sockets, 2 * others + (first ? here - 1 : 1)) << "rank " << r;
    met = std::max(met, figures[r].met);
    exchanged = std::max(exchanged, figures[r].exchanged);
  }
  if (std::getenv("OFSDP_RANKS_OF_HOSTS") != nullptr) {
    fmt::print(
        "{} ranks on {} hosts: {} sockets and {} pipes a rank, met in {:.1f} s, {:.2f} s an "
        "exchange\n",
        world, others + 1, figures[1].sockets, figures[1].pipes, met, exchanged);
  }
  munmap(figures, sizeof(Figures) * world);
}

}  // namespace many_ranks_test
}  // namespace ofsdp
