// The real command on two hosts: started by mpirun, and with torchrun's variables set by hand, over
// network namespaces; and what is said when a rank is missing, is killed, or loses the network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>

#include "fsdp/hosts/stream_socket.h"
#include "tests/procs/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace {

using testing::HasSubstr;

std::string scratch(const std::string& name) {
  return fmt::format("{}hosts-{}-{}", testing::TempDir(), getpid(), name);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string line_of(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += fmt::format("'{}' ", word);
  return line;
}

// A small transformer: the sample's, a few steps on made-up data.
Words bert(const std::string& steps) {
  return fsdp_run({OFSDP_SOURCE_DIR "/samples/bert/bert.onnx"}) +
         Words{"--data",          "synthetic",   "--steps",   steps, "--global-batch-size", "6",
               "--eval-interval", "1000000step", "--threads", "1",   "--timeout",           "9"};
}

// One process under a shell, its output in a file. Ends after a minute whatever happens.
class Running {
 public:
  Running(const std::string& name, const std::string& line) : path_(scratch(name)) {
    pid_ = fork();
    if (pid_ == 0) {
      const std::string whole = fmt::format("exec timeout -s KILL 60 {} >{} 2>&1", line, path_);
      execl("/bin/sh", "sh", "-c", whole.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
  }
  ~Running() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    unlink(path_.c_str());
  }
  Running(const Running&) = delete;

  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string said() const { return read_text(path_); }
  // Until it has said so.
  void expect(const std::string& text) const {
    for (int i = 0; i < 3000 && said().find(text) == std::string::npos; ++i) usleep(10'000);
    EXPECT_THAT(said(), HasSubstr(text));
  }

 private:
  std::string path_;
  pid_t pid_ = -1;
};

std::string variables(int rank, int world, const std::string& address, int port) {
  return fmt::format(
      "env RANK={0} WORLD_SIZE={1} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK={0} "
      "GROUP_WORLD_SIZE={1} MASTER_ADDR={2} MASTER_PORT={3} ",
      rank, world, address, port);
}

int free_port() {
  int port = 0;
  auto listener = listen_on(port);
  return port;
}

int lines_of_errors(const std::string& said) {
  int count = 0;
  for (size_t at = 0; (at = said.find("fsdp-run: ", at)) != std::string::npos; ++at) ++count;
  return count;
}

class TwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << "network namespaces cannot be made here (ip netns, veth)";
  }
  // What two ranks of one host write: one rank a host sums in the same order.
  static std::string reference(const Words& command) {
    const std::string out = scratch("reference.onnx");
    Running run("reference", line_of(command + ranks(2) + Words{"--output", out}));
    EXPECT_EQ(run.wait(), 0) << run.said();
    const std::string bytes = read_text(out);
    unlink(out.c_str());
    return bytes;
  }
  void expect_mpirun(const std::string& engine, const std::string& mpirun) {
    const std::string library = fmt::format("{}/libofsdp_mpi_{}.so", OFSDP_LIBRARY_DIR, engine);
    if (access(library.c_str(), R_OK) != 0) GTEST_SKIP() << library << " was not built";
    const std::string out = scratch("mpirun.onnx");
    Running run(engine,
                hosts_.on(0) + mpirun + " -np 2 " + line_of(bert("3") + Words{"--output", out}));
    EXPECT_EQ(run.wait(), 0) << run.said();
    EXPECT_TRUE(read_text(out) == reference(bert("3"))) << "other bytes than two ranks of one host";
    unlink(out.c_str());
  }

  Namespaces hosts_;
};

TEST_F(TwoHosts, MpirunOfOpenMpi) {
  expect_mpirun("openmpi",
                fmt::format("mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent {} --mca "
                            "btl_tcp_if_include 10.77.31.0/24 --mca oob_tcp_if_include "
                            "10.77.31.0/24 --host {}:1,{}:1",
                            hosts_.agent(), Namespaces::kAddress[0], Namespaces::kAddress[1]));
}

TEST_F(TwoHosts, MpirunOfMpich) {
  expect_mpirun("mpich",
                fmt::format("mpirun.mpich -launcher ssh -launcher-exec {} -hosts {},{}",
                            hosts_.agent(), Namespaces::kAddress[0], Namespaces::kAddress[1]));
}

TEST_F(TwoHosts, TorchrunVariables) {
  const std::string out = scratch("torchrun.onnx");
  const std::string line = line_of(bert("3") + Words{"--output", out});
  const std::string address = Namespaces::kAddress[0];
  Running second("b", hosts_.on(1) + variables(1, 2, address, 29500) + line);
  Running first("a", hosts_.on(0) + variables(0, 2, address, 29500) + line);
  EXPECT_EQ(first.wait(), 0) << first.said();
  EXPECT_EQ(second.wait(), 0) << second.said();
  EXPECT_TRUE(read_text(out) == reference(bert("3"))) << "other bytes than two ranks of one host";
  unlink(out.c_str());
}

TEST_F(TwoHosts, ACutLinkEndsAllRanks) {
  const std::string line = line_of(bert("1000000"));
  const std::string address = Namespaces::kAddress[0];
  Running second("b", hosts_.on(1) + variables(1, 2, address, 29500) + line);
  Running first("a", hosts_.on(0) + variables(0, 2, address, 29500) + line);
  first.expect("step 1/");
  hosts_.cut();
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(first.said(), HasSubstr("could not be reached any more while rank 0 waited in "));
  EXPECT_EQ(lines_of_errors(first.said()), 1);
  EXPECT_LE(lines_of_errors(second.said()), 1);
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
  const std::string line = line_of(bert("1") + Words{"--timeout", "1"});
  Running first("a", variables(0, 3, "127.0.0.1", port) + line);
  Running third("c", variables(2, 3, "127.0.0.1", port) + line);
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(third.wait(), 1);
  EXPECT_THAT(first.said(), HasSubstr(fmt::format("rank 1 did not arrive at 127.0.0.1:{} within 1 "
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

}  // namespace
}  // namespace ofsdp
