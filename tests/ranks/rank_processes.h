// Runs a function as every rank of a run: forked processes meet and hold a communicator, while the
// test waits for them. Forking must precede any thread, so a test must not hold a communicator
// itself.
//
// If HostCounts names an MPI library, mpirun starts this program again as every rank, with the
// filter of the running test; there the constructor is the rank and never returns.
//
// A rank reports with RankReport, in memory shared with the test. Ranks that run longer than
// kPatience are killed, and the test fails.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/stream_socket.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

struct RankReport {
  bool failed;         // an error came back
  ErrorKind kind;      // the error's
  bool claimed;        // this rank must print it
  int exit_status;     // the run's, as this rank sees it
  double ended;        // steady clock, seconds
  char message[1024];  // the error's
};

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The number of ranks on each host. Several "hosts" are groups of processes on this host that share
// no memory and speak over TCP on the loopback.
struct HostCounts {
  std::vector<int> counts;
  std::string engine = {};                  // "openmpi" or "mpich"; empty: ranks are forked
  HostCounts(int world) : counts{world} {}  // NOLINT: implicit on purpose
  HostCounts(std::initializer_list<int> list) : counts(list) {}
  HostCounts(std::string mpi, std::initializer_list<int> list)
      : counts(list), engine(std::move(mpi)) {}

  // Whether the library is built, and mpirun installed.
  bool available() const {
    if (engine.empty()) return true;
    const std::string library = format_text("{}/libofsdp_mpi_{}.so", OFSDP_LIBRARY_DIR, engine);
    const std::string look = format_text("command -v mpirun.{} >/dev/null", engine);
    return access(library.c_str(), R_OK) == 0 && std::system(look.c_str()) == 0;
  }

  int world() const {
    int sum = 0;
    for (const int count : counts) sum += count;
    return sum;
  }
  friend void PrintTo(const HostCounts& hosts, std::ostream* out) {
    *out << hosts.engine << (hosts.engine.empty() ? "" : " ");
    for (size_t h = 0; h < hosts.counts.size(); ++h) *out << (h > 0 ? "+" : "") << hosts.counts[h];
  }
};

// Each rank's values, as in the environment.
inline std::vector<RankIdentity> identities(const HostCounts& hosts, const std::string& name) {
  std::vector<RankIdentity> all;
  const int port = hosts.counts.size() > 1 ? free_port() : 0;
  for (size_t h = 0; h < hosts.counts.size(); ++h) {
    for (int local = 0; local < hosts.counts[h]; ++local) {
      RankIdentity identity{static_cast<int>(all.size()), hosts.world(), local, name, "test"};
      if (hosts.counts.size() > 1) {
        identity.local_world = hosts.counts[h];
        identity.nodes = static_cast<int>(hosts.counts.size());
        identity.node_rank = static_cast<int>(h);
        identity.master_address = "127.0.0.1";
        identity.master_port = port;
        identity.run_id = name;
      }
      all.push_back(identity);
    }
  }
  return all;
}

class RankProcesses {
 public:
  using Body = std::function<Status(Communicator&, MemoryLedger&)>;
  static constexpr double kPatience = 60;

  RankProcesses(const HostCounts& hosts, Body body,
                std::chrono::seconds timeout = std::chrono::seconds(30))
      : world_(hosts.world()) {
    reports_ =
        static_cast<RankReport*>(mmap(nullptr, sizeof(RankReport) * count(), PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    static int runs = 0;
    const std::string name = format_text("test-{}-{}", getpid(), ++runs);
    if (std::getenv(kUnderMpirun) != nullptr) be_started(body, timeout);
    std::fflush(nullptr);  // otherwise every rank prints it again
    if (!hosts.engine.empty()) {
      start_mpirun(hosts);
      return;
    }
    for (const RankIdentity& identity : identities(hosts, name)) {
      const pid_t pid = fork();
      if (pid == 0) _exit(be(identity, body, timeout));
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    }
    if (mpirun_ > 0) kill(mpirun_, SIGTERM), waitpid(mpirun_, nullptr, 0);
    munmap(reports_, sizeof(RankReport) * count());
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  void signal_rank(int rank, int number) const { kill(pid(rank), number); }
  const RankReport& report(int rank) const { return reports_[rank]; }

  // One rank's wait status.
  int wait(int rank) {
    const double end = now_seconds() + kPatience;
    int status = 0;
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (now_seconds() > end) {
        ADD_FAILURE() << "rank " << rank << " did not end within " << kPatience << " s";
        return -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    pid = -1;
    return status;
  }

  void expect_success() {
    if (mpirun_ > 0) {
      expect_mpirun_success();
      return;
    }
    for (int rank = 0; rank < world_; ++rank) {
      EXPECT_EQ(wait(rank), 0) << "rank " << rank << ": " << report(rank).message;
    }
  }

 private:
  static constexpr const char* kUnderMpirun = "OFSDP_TEST_UNDER_MPIRUN";
  static constexpr const char* kDone = "rank done\n";

  size_t count() const { return static_cast<size_t>(world_); }

  [[noreturn]] void be_started(const Body& body, std::chrono::seconds timeout) {
    auto identity = rank_identity_from_environment();
    if (!identity.ok() || !*identity) _exit(9);
    const int status = be(**identity, body, timeout);
    const RankReport& report = reports_[(**identity).rank];
    if (report.failed) {
      fmt::print(stderr, "rank {}: {}\n", (**identity).rank, report.message);
    } else {
      fmt::print("{}", kDone);
    }
    std::fflush(nullptr);
    _exit(status);
  }

  void start_mpirun(const HostCounts& hosts) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string line = format_text("exec timeout -k 5 {} mpirun.{}", kPatience, hosts.engine);
    if (hosts.engine == "openmpi") line += " --allow-run-as-root --oversubscribe";
    for (size_t h = 0; h < hosts.counts.size(); ++h) {
      line += format_text(
          "{} -np {} env {}=1 GROUP_RANK={} GROUP_WORLD_SIZE={} '{}' --gtest_filter='{}.{}'",
          h > 0 ? " :" : "", hosts.counts[h], kUnderMpirun, h, hosts.counts.size(),
          program_invocation_name, test->test_suite_name(), test->name());
    }
    if (pipe(said_) != 0) abort();
    mpirun_ = fork();
    if (mpirun_ == 0) {
      dup2(said_[1], STDOUT_FILENO);
      close(said_[0]);
      close(said_[1]);
      execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(said_[1]);
  }

  // Every rank must report success: a filter that fits no test is no success.
  void expect_mpirun_success() {
    std::string said;
    char buffer[4096];
    for (ssize_t n; (n = read(said_[0], buffer, sizeof buffer)) > 0;) {
      said.append(buffer, static_cast<size_t>(n));
    }
    close(said_[0]);
    int status = -1, done = 0;
    waitpid(mpirun_, &status, 0);
    mpirun_ = -1;
    for (size_t at = 0; (at = said.find(kDone, at)) != std::string::npos; ++at) ++done;
    EXPECT_EQ(status, 0) << "mpirun";
    EXPECT_EQ(done, world_) << said;
  }

  int be(const RankIdentity& identity, const Body& body, std::chrono::seconds timeout) {
    RankReport& report = reports_[identity.rank];
    MemoryLedger ledger;  // outlives the communicator
    auto connected = connect_ranks(identity, timeout);
    if (!connected.ok()) return put(report, connected.error(), nullptr);
    Communicator& communicator = **connected;
    Status status = body(communicator, ledger);
    if (status.ok()) status = communicator.leave();
    if (!status.ok()) return put(report, status, &communicator);
    connected->reset();
    return 0;
  }

  static int put(RankReport& report, const Status& status, Communicator* communicator) {
    report.failed = true;
    report.kind = status.kind();
    std::snprintf(report.message, sizeof report.message, "%s", status.message().c_str());
    if (communicator != nullptr) {
      report.claimed = communicator->fail(status);
      report.exit_status = communicator->exit_status();
    }
    report.ended = now_seconds();
    return report.exit_status != 0 ? report.exit_status : 1;
  }

  int world_;
  pid_t mpirun_ = -1;
  int said_[2] = {-1, -1};
  std::vector<pid_t> pids_;
  RankReport* reports_;
};

}  // namespace ofsdp
