// The real command on two hosts: started by mpirun, with torchrun's variables set by hand, and by a
// launcher on each. The hosts are network namespaces, with a slow link between them. And the
// messages when a rank is missing, is killed, or loses the network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>

#include "fsdp/comm/store/stream_socket.h"
#include "tests/procs/namespaces.h"
#include "tests/procs/on_hosts.h"

namespace ofsdp {
namespace hosts_test {

using testing::ContainsRegex;
using testing::HasSubstr;

int lines_of_errors(const std::string& said) {
  int count = 0;
  for (size_t at = 0; (at = said.find("fsdp-run: ", at)) != std::string::npos; ++at) ++count;
  return count;
}

// Starts one rank on each host.
enum class By { kOpenMpi, kMpich, kVariables, kLaunchers };

class TwoHosts : public testing::TestWithParam<By> {
 protected:
  using Processes = std::vector<std::unique_ptr<Running>>;

  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << Namespaces::kNotMade;
    const std::string library = format_text("{}/libofsdp_mpi_{}.so", OFSDP_LIBRARY_DIR, engine());
    if (mpi() && access(library.c_str(), R_OK) != 0) GTEST_SKIP() << library << " was not built";
  }
  static bool mpi() { return GetParam() == By::kOpenMpi || GetParam() == By::kMpich; }
  static std::string engine() { return GetParam() == By::kOpenMpi ? "openmpi" : "mpich"; }

  // mpirun, which runs on the first host; otherwise one command on each host.
  Processes start(const Words& words) {
    Processes all;
    const auto run = [&](int host, const std::string& line) {
      const std::string name = format_text("on-{}", host);
      all.push_back(std::make_unique<Running>(name, hosts_.on(host) + line));
    };
    const std::string line = line_of(words), address = Namespaces::kAddress[0];
    const std::string both = format_text("{},{}", address, Namespaces::kAddress[1]);
    if (GetParam() == By::kOpenMpi) {
      const std::string network = "10.77.31.0/24";
      run(0, format_text("mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent {} "
                         "--mca btl_tcp_if_include {} --mca oob_tcp_if_include {} --host {} "
                         "-np 2 {}",
                         hosts_.agent(), network, network, both, line));
    } else if (GetParam() == By::kMpich) {
      run(0, format_text("mpirun.mpich -launcher ssh -launcher-exec {} -hosts {} -np 2 {}",
                         hosts_.agent(), both, line));
    }
    for (const int host : {0, 1}) {
      if (GetParam() == By::kVariables) run(host, variables(host, 2, address, 29500) + line);
      if (GetParam() != By::kLaunchers) continue;
      run(host,
          line + format_text("--nnodes 2 --node-rank {} --rdzv-endpoint {}:29400", host, address));
    }
    return all;
  }

  Namespaces hosts_;
};

std::string name_of(const testing::TestParamInfo<By>& info) {
  const char* const names[] = {"OpenMpi", "Mpich", "Variables", "Launchers"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(StartedBy, TwoHosts,
                         testing::Values(By::kOpenMpi, By::kMpich, By::kVariables, By::kLaunchers),
                         name_of);

TEST_P(TwoHosts, TrainAsPyTorchDoes) {
  const testing_data::TempFolder folder;
  const std::string out = folder.path() + "/trained.onnx", metrics = folder.path() + "/m.jsonl";
  for (const auto& process : start(bert("24") + Words{"--output", out, "--metrics", metrics})) {
    EXPECT_EQ(process->wait(), 0) << process->said();
  }
  expect_near(steps_of(metrics), reference("bert_tiny"));
  EXPECT_TRUE(read_text(out) == written_on_one_host(bert("24")))
      << "other bytes than two ranks of one host";
}

// Whether ranks with this text in the command run; the processes that started them do not count.
bool ranks_are_left(const std::string& text) {
  return std::ranges::any_of(processes_with(text), [](pid_t pid) {
    return read_text(format_text("/proc/{}/comm", pid)) == "fsdp-run\n";
  });
}

// mpirun may wait for its other half for any time, so the test does not wait for mpirun.
TEST_P(TwoHosts, EndWhenTheLinkIsCut) {
  const testing_data::TempFolder folder;
  const std::string out = folder.path() + "/trained.onnx";
  const Processes all = start(bert("1000000") + Words{"--log-interval", "1", "--output", out});
  all[0]->expect("3/1000000");
  hosts_.cut();
  EXPECT_TRUE(holds_within(40, [&] { return !ranks_are_left(folder.path()); }));
  for (const auto& process : all) {
    if (!mpi()) {
      EXPECT_EQ(process->wait(), 1);
    }
    process->expect("fsdp-run: ");
    EXPECT_EQ(lines_of_errors(process->said()), 1) << process->said();
  }
  EXPECT_THAT(all[0]->said(),
              ContainsRegex("fsdp-run: rank 1 \\(pid [0-9]+ on [^)]*\\) could not be "
                            "reached any more while rank 0 waited in .* at step "));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Hosts, AKilledRankIsNamedOnceInAllOutput) {
  const int port = free_port();
  const std::string line = line_of(bert("1000000"));
  Running first("a", variables(0, 3, "127.0.0.1", port) + line);
  Running second("b", variables(1, 3, "127.0.0.1", port) + "timeout -s KILL 4 " + line);
  Running third("c", variables(2, 3, "127.0.0.1", port) + line);
  EXPECT_NE(second.wait(), 0);
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(third.wait(), 1);
  const std::string said = first.said() + second.said() + third.said();
  EXPECT_EQ(lines_of_errors(said), 1) << said;
  EXPECT_THAT(said, HasSubstr("fsdp-run: rank 1 (pid "));
  EXPECT_THAT(said, HasSubstr("died while rank "));
}

TEST(Hosts, AMissingRankIsNamed) {
  const int port = free_port();
  const std::string line = line_of(bert("1", "1"));
  Running first("a", variables(0, 3, "127.0.0.1", port) + line);
  Running third("c", variables(2, 3, "127.0.0.1", port) + line);
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(third.wait(), 1);
  EXPECT_THAT(first.said(), HasSubstr(format_text("rank 1 did not arrive at 127.0.0.1:{} within 1 "
                                                  "s: 2 of 3 ranks are there",
                                                  port)));
  EXPECT_EQ(third.said(), "");
}

TEST(Hosts, WithoutAMeetingPointOrALibraryOneLineSaysSo) {
  const std::string line = line_of(bert("1"));
  Running lost("lost",
               "env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "
               "OMPI_COMM_WORLD_LOCAL_SIZE=1 OFSDP_ENGINE=tcp " +
                   line);
  EXPECT_EQ(lost.wait(), 2);
  EXPECT_THAT(lost.said(), HasSubstr("MASTER_ADDR and MASTER_PORT are not set"));
  Running other("other",
                "env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "
                "OMPI_COMM_WORLD_LOCAL_SIZE=1 OFSDP_ENGINE=gloo " +
                    line);
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.said(),
              HasSubstr("OFSDP_ENGINE: expected tcp, openmpi or mpich, found 'gloo'"));
}

}  // namespace hosts_test
}  // namespace ofsdp
