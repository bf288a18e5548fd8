// Cores dealt to ranks on machines with a recorded /sys: hardware threads numbered apart and side
// by side, two sockets, several memory nodes in a socket.
#include <gtest/gtest.h>

#include "kernels/base/text.h"
#include "runtime/cli/launch/launcher.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace core_shares_test {

struct Processor {
  int socket, node, core;
};

using Shares = std::vector<std::vector<int>>;

Shares dealt(const std::vector<Processor>& machine, int nproc, std::vector<int> allowed = {}) {
  const onnx_bytes::Folder folder;
  cpu_set_t all;
  CPU_ZERO(&all);
  for (size_t i = 0; i < machine.size(); ++i) {
    const std::string cpu = format_text("sys/devices/system/cpu/cpu{}/", i);
    folder.write(cpu + "topology/physical_package_id", format_text("{}\n", machine[i].socket));
    folder.write(cpu + "topology/core_id", format_text("{}\n", machine[i].core));
    folder.write(format_text("{}node{}/cpulist", cpu, machine[i].node), "");
    if (allowed.empty()) CPU_SET(i, &all);
  }
  for (const int processor : allowed) CPU_SET(static_cast<size_t>(processor), &all);
  Shares shares;
  for (const cpu_set_t& set : core_shares(all, nproc, folder.path())) {
    shares.emplace_back();
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) shares.back().push_back(i);
    }
  }
  return shares;
}

// Four cores; second threads have the numbers after all first threads.
const std::vector<Processor> kLaptop = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3},
                                        {0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}};
// Two sockets with two cores each; the numbers alternate between sockets.
const std::vector<Processor> kServer = {{0, 0, 0}, {1, 1, 0}, {0, 0, 1}, {1, 1, 1},
                                        {0, 0, 0}, {1, 1, 0}, {0, 0, 1}, {1, 1, 1}};

TEST(CoreShares, ThreadsOfACoreStayTogether) {
  EXPECT_EQ(dealt(kLaptop, 1), (Shares{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(dealt(kLaptop, 2), (Shares{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(dealt(kLaptop, 4), (Shares{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(CoreShares, ARankStaysOnItsSocket) {
  EXPECT_EQ(dealt(kServer, 2), (Shares{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(dealt(kServer, 4), (Shares{{0, 4}, {2, 6}, {1, 5}, {3, 7}}));
}

// A node's cores need not have neighbouring identifiers.
TEST(CoreShares, ARankStaysOnItsMemoryNode) {
  const std::vector<Processor> machine = {{0, 0, 0}, {0, 1, 1}, {0, 0, 2}, {0, 1, 3}};
  EXPECT_EQ(dealt(machine, 2), (Shares{{0, 2}, {1, 3}}));
}

TEST(CoreShares, AsManyForEachAsDivides) {
  EXPECT_EQ(dealt(kLaptop, 3), (Shares{{0, 1, 4}, {2, 5, 6}, {3, 7}}));
  EXPECT_EQ(dealt(kLaptop, 9), Shares{});
}

TEST(CoreShares, OnlyAllowedOnes) {
  EXPECT_EQ(dealt(kLaptop, 2, {1, 2, 5, 6}), (Shares{{1, 5}, {2, 6}}));
}

TEST(CoreShares, AMachineThatTellsNothing) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const size_t i : {0, 1, 2, 3}) CPU_SET(i, &all);
  const auto shares = core_shares(all, 2, "/nowhere");
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_TRUE(CPU_ISSET(0, &shares[0]) && CPU_ISSET(1, &shares[0]));
}

}  // namespace core_shares_test
}  // namespace ofsdp
