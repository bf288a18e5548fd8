// Runs a function as every rank of a run: forked processes that meet and hold a communicator, while
// the test waits for them. Fork before any thread is made, so a test must not hold a communicator
// itself.
//
// A rank reports with RankReport, which lies in memory shared with the test. Ranks that overstay
// kPatience are killed, and the test fails.
#pragma once

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

#include "fsdp/connect.h"
#include "fsdp/hosts/stream_socket.h"

namespace ofsdp {

struct RankReport {
  bool failed;         // an error came back
  ErrorKind kind;      // of it
  bool claimed;        // this rank is the one to print it
  int exit_status;     // of the run, as this rank sees it
  double ended;        // steady clock, seconds
  char message[1024];  // of the error
};

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How many ranks each host has. Several "hosts" are groups of processes of this one that share no
// memory and speak over TCP on the loopback.
struct HostCounts {
  std::vector<int> counts;
  HostCounts(int world) : counts{world} {}  // NOLINT: implicit on purpose
  HostCounts(std::initializer_list<int> list) : counts(list) {}

  int world() const {
    int sum = 0;
    for (const int count : counts) sum += count;
    return sum;
  }
  friend void PrintTo(const HostCounts& hosts, std::ostream* out) {
    for (size_t h = 0; h < hosts.counts.size(); ++h) *out << (h > 0 ? "+" : "") << hosts.counts[h];
  }
};

// What the environment would say to each rank.
inline std::vector<RankIdentity> identities(const HostCounts& hosts, const std::string& name) {
  std::vector<RankIdentity> all;
  int port = 0;  // free a moment ago
  if (hosts.counts.size() > 1) auto listener = listen_on(port);
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
    const std::string name = fmt::format("test-{}-{}", getpid(), ++runs);
    std::fflush(nullptr);  // or every rank prints it again
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
    munmap(reports_, sizeof(RankReport) * count());
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  void signal_rank(int rank, int number) const { kill(pid(rank), number); }
  const RankReport& report(int rank) const { return reports_[rank]; }

  // The wait status of one rank.
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
    for (int rank = 0; rank < world_; ++rank) {
      EXPECT_EQ(wait(rank), 0) << "rank " << rank << ": " << report(rank).message;
    }
  }

 private:
  size_t count() const { return static_cast<size_t>(world_); }

  int be(const RankIdentity& identity, const Body& body, std::chrono::seconds timeout) {
    RankReport& report = reports_[identity.rank];
    MemoryLedger ledger;  // outlives the communicator
    auto connected = connect_ranks(identity, timeout);
    if (!connected.ok()) return put(report, connected.error(), nullptr);
    Communicator& communicator = **connected;
    const Status status = body(communicator, ledger);
    if (!status.ok()) return put(report, status, &communicator);
    communicator.leave();
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
  std::vector<pid_t> pids_;
  RankReport* reports_;
};

}  // namespace ofsdp
