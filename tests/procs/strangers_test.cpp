// Strangers on the network of a run on two hosts: they know every address and port, but not the
// secret. They hear nothing, hold up nothing and change no bit, at the ranks' ports and the
// launchers' port. Only the link between the hosts has these ports.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>

#include "fsdp/comm/store/doorkeeper.h"
#include "tests/procs/namespaces.h"
#include "tests/procs/on_hosts.h"

namespace ofsdp {
namespace strangers_test {

using fsdp::Challenge;
using fsdp::connect_to;
using fsdp::JobSecret;
using fsdp::Json;
using fsdp::Store;
using fsdp::StreamClock;
using testing::HasSubstr;

constexpr const char* kSecret = "OFSDP_SECRET=known-to-both-hosts ";
constexpr int kRanksPort = 29500, kLaunchersPort = 29400;

StreamClock::time_point soon() { return StreamClock::now() + std::chrono::seconds(1); }

// A process on the second host that disturbs a port on the first one as long as it lives.
class Strangers {
 public:
  Strangers(const Namespaces& hosts, int port, const std::string& report) : report_(report) {
    const std::string space = "/run/netns/" + hosts.words_on(1).back();
    pid_ = fork();
    if (pid_ != 0) return;
    const int fd = open(space.c_str(), O_RDONLY | O_CLOEXEC);
    if (setns(fd, CLONE_NEWNET) == 0) disturb(port);
    _exit(1);
  }
  ~Strangers() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // Waits until the strangers have tried everything once.
  void expect_all() const {
    for (int i = 0; i < 3000 && !std::filesystem::exists(report_); ++i) usleep(10'000);
    EXPECT_EQ(read_text(report_), "nothing was heard");
  }

 private:
  static UniqueFd connection(int port) {
    return connect_to(Namespaces::kAddress[0], port, soon()).socket;
  }

  [[noreturn]] void disturb(int port) const {
    while (!connection(port).valid()) usleep(10'000);
    std::vector<UniqueFd> silent, dripping;
    for (int i = 0; i < 200; ++i) {
      silent.push_back(connection(port));
      dripping.push_back(connection(port));
      send(dripping.back().get(), "\0\0\377\0{", 5, MSG_NOSIGNAL);
    }
    std::string heard;
    for (bool first = true;; first = false) {
      heard += said_to(port, JobSecret());
      heard += said_to(port, JobSecret("guessed"));
      heard += said_to_rude(port);
      if (first) std::ofstream(report_ + ".part") << (heard.empty() ? "nothing was heard" : heard);
      if (first) std::filesystem::rename(report_ + ".part", report_);
      for (const UniqueFd& fd : dripping) send(fd.get(), " ", 1, MSG_NOSIGNAL);
      usleep(20'000);
    }
  }

  // Tells whether the stranger hears more than the challenge and its refusal.
  static std::string beyond_challenge(Store& store) {
    for (int i = 0; i < 300 && !store.closed(); ++i) store.pump(), usleep(1'000);
    store.take("turned_away");
    store.take("challenge");
    return store.empty() ? "" : "something was heard\n";
  }

  static std::string said_to(int port, const JobSecret& secret) {
    Store store(connection(port));
    Challenge challenge(secret, "meeting of ranks", Challenge::Side::kConnects);
    if (settle(challenge, store, soon()) == Challenge::State::kPassed) return "came in\n";
    return beyond_challenge(store);
  }

  // A hello with another number of ranks, without a proof.
  static std::string said_to_rude(int port) {
    Store store(connection(port));
    store.set("hello", {{"magic", "fsdp-run hosts 4"}, {"rank", 1}, {"world", 99}});
    return beyond_challenge(store);
  }

  std::string report_;
  pid_t pid_ = -1;
};

class OnTwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << Namespaces::kNotMade;
  }
  std::unique_ptr<Running> start(int host, const std::string& before, const Words& words) {
    return std::make_unique<Running>(format_text("on-{}", host),
                                     hosts_.on(host) + before + line_of(words));
  }
  std::string by_variables(int rank) const {
    return format_text("env {}{}", kSecret,
                       variables(rank, 2, Namespaces::kAddress[0], kRanksPort).substr(4));
  }
  static std::string without_secret(int rank) {
    return "env -u OFSDP_SECRET " + variables(rank, 2, Namespaces::kAddress[0], kRanksPort);
  }
  Words by_launcher(int host) const {
    return {"--nnodes",        "2",
            "--node-rank",     std::to_string(host),
            "--rdzv-endpoint", format_text("{}:{}", Namespaces::kAddress[0], kLaunchersPort)};
  }

  Namespaces hosts_;
  const testing_data::TempFolder folder_;
  const std::string out_ = folder_.path() + "/trained.onnx";
};

TEST_F(OnTwoHosts, TheMeetingOfRanksIsTheirsAlone) {
  const Words words = bert("24", "30") + Words{"--output", out_};
  const auto first = start(0, by_variables(0), words);
  const Strangers strangers(hosts_, kRanksPort, folder_.path() + "/report");
  strangers.expect_all();
  const auto second = start(1, by_variables(1), words);
  EXPECT_EQ(first->wait(), 0) << first->said();
  EXPECT_EQ(second->wait(), 0) << second->said();
  EXPECT_TRUE(read_text(out_) == written_on_one_host(bert("24")));
  EXPECT_EQ(first->said().find("warning"), std::string::npos) << first->said();
}

TEST_F(OnTwoHosts, TheMeetingOfLaunchersIsTheirsAlone) {
  const Words words = bert("24", "30") + Words{"--output", out_};
  const std::string secret = format_text("env {}", kSecret);
  const auto first = start(0, secret, words + by_launcher(0));
  const Strangers strangers(hosts_, kLaunchersPort, folder_.path() + "/report");
  strangers.expect_all();
  const auto second = start(1, secret, words + by_launcher(1));
  EXPECT_EQ(first->wait(), 0) << first->said();
  EXPECT_EQ(second->wait(), 0) << second->said();
  EXPECT_TRUE(read_text(out_) == written_on_one_host(bert("24")));
}

TEST_F(OnTwoHosts, WhoHasAnotherSecretIsToldSo) {
  const auto first = start(0, by_variables(0), bert("1", "4"));
  const std::string other = without_secret(1);
  const auto second = start(1, other, bert("1"));
  EXPECT_EQ(second->wait(), 2);
  EXPECT_THAT(second->said(),
              HasSubstr("fsdp-run: rank 0 at 10.77.31.1:29500 turned rank 1 away: expected the "
                        "secret of its job in OFSDP_SECRET_FILE or OFSDP_SECRET, found none"));
  EXPECT_EQ(first->wait(), 1);
  EXPECT_THAT(first->said(), HasSubstr("1 of 2 ranks are there; 1 without the job's secret"));
}

// Rank 0 while it waits: at the link's address, and at no other.
TEST_F(OnTwoHosts, PortsAreThoseOfTheLink) {
  const auto first = start(0, by_variables(0), bert("1", "20"));
  const std::string ports = folder_.path() + "/ports";
  const std::string list =
      format_text("{} sh -c 'cat /proc/net/tcp /proc/net/tcp6' >{}", hosts_.on(0), ports);
  int listening = 0;
  for (int i = 0; i < 1000 && listening < 2; ++i, usleep(10'000)) {
    ASSERT_EQ(std::system(list.c_str()), 0);
    listening = 0;
    std::istringstream lines(read_text(ports));
    for (std::string line; std::getline(lines, line);) {
      const Words words = split(line);
      if (words.size() < 4 || words[3] != "0A") continue;  // TCP_LISTEN
      ++listening;
      EXPECT_TRUE(words[1].starts_with("011F4D0A:")) << line;  // 10.77.31.1
    }
  }
  EXPECT_EQ(listening, 2);  // for the meeting, and for links
}

// A name server on the second host that takes every question and answers none; `ip netns exec`
// gives the first host a separate resolv.conf.
TEST_F(OnTwoHosts, ASilentNameServerIsWaitedForNoLongerThanTheTimeout) {
  const std::string space = hosts_.words_on(0).back(), folder = "/etc/netns/" + space;
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/resolv.conf")
      << "nameserver " << Namespaces::kAddress[1] << "\noptions timeout:30 attempts:4\n";
  const Running server("server",
                       hosts_.on(1) + "/usr/bin/python3 -c '" +
                           "import socket; s = socket.socket(2, 2); s.bind((\"\", 53)); "
                           "print(\"ready\", flush=True); [s.recv(9) for _ in iter(int, 1)]'");
  server.expect("ready");
  const auto rank = start(0, variables(1, 2, "somewhere.example", kRanksPort), bert("1", "2"));
  EXPECT_EQ(rank->wait(), 1);
  EXPECT_THAT(rank->said(), HasSubstr("the name server does not answer"));
  std::filesystem::remove_all(folder);
}

TEST_F(OnTwoHosts, WithoutASecretOneLineWarns) {
  const auto first = start(0, without_secret(0), bert("1"));
  const auto second = start(1, without_secret(1), bert("1"));
  EXPECT_EQ(first->wait(), 0) << first->said();
  EXPECT_EQ(second->wait(), 0) << second->said();
  EXPECT_THAT(first->said(), HasSubstr("fsdp-run: warning: neither OFSDP_SECRET_FILE nor "
                                       "OFSDP_SECRET is set"));
  EXPECT_EQ(second->said().find("warning"), std::string::npos) << second->said();
}

}  // namespace strangers_test
}  // namespace ofsdp
