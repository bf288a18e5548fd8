// Launchers for several hosts, all on this one: who starts which ranks, and the end when some do
// not come, contradict each other, fail or are killed. The ranks train nothing: they print the
// identity that they were given, and end according to their scene.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "fsdp/comm/store/stream_socket.h"
#include "tests/ranks/launch_process.h"
#include "tests/support/await_meeting.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace rendezvous_test {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- Scenes of the ranks ----

std::string variable(const char* name) {
  const char* text = getenv(name);
  return text == nullptr ? "" : text;
}

int number(const char* name) { return std::atoi(variable(name).c_str()); }

int say() {
  fmt::print(stderr, "rank {} of {} local {} of {} node {} of {} restart {}{}\n", number("RANK"),
             number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE"),
             number("GROUP_RANK"), number("GROUP_WORLD_SIZE"), number("TORCHELASTIC_RESTART_COUNT"),
             variable("OFSDP_RESTART").empty() ? "" : " " + variable("OFSDP_RESTART"));
  return 0;
}

int wait_for_the_end() {
  fmt::print(stderr, "ready\n");
  while (true) pause();
}

int be_rank(const std::string& scene) {
  const bool again = number("TORCHELASTIC_RESTART_COUNT") > 0;
  if (scene == "say" || (again && scene != "fails always")) return say();
  if (scene == "master") {
    fmt::print(stderr, "{}:{} {}\n", variable("MASTER_ADDR"), variable("MASTER_PORT"),
               variable("TORCHELASTIC_RUN_ID"));
    return 0;
  }
  if (number("RANK") != 1 || scene == "waits") return wait_for_the_end();
  if (scene == "killed") return raise(SIGKILL);
  fmt::print(stderr, "error: of rank 1\n");
  return scene == "wrong input" ? 2 : 1;
}

// ---- Helpers and tests ----

// Launchers that meet at a port on this host.
class Hosts {
 public:
  explicit Hosts(int nnodes) : port_(free_port()) {
    plan_.options.nnodes = nnodes;
    plan_.options.rdzv_endpoint = format_text("127.0.0.1:{}", port_);
    plan_.options.timeout_seconds = 20;
    plan_.grace = std::chrono::milliseconds(300);
  }

  LaunchOptions& options() { return plan_.options; }
  int port() const { return port_; }
  std::unique_ptr<Launch> launch(int nproc, const std::string& scene, int node_rank = -1) const {
    LaunchPlan plan = plan_;
    plan.options.nproc_per_node = nproc;
    if (node_rank >= 0) plan.options.node_rank = node_rank;
    return std::make_unique<Launch>(plan, scene);
  }

 private:
  int port_;
  LaunchPlan plan_;
};

std::string sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  std::ranges::sort(lines);
  return format_text("{}", joined(lines, "\n"));
}

TEST(Rendezvous, HostsOfDifferentSizesMakeOneWorld) {
  Hosts hosts(3);
  const auto last = hosts.launch(1, "say", 2);
  const auto first = hosts.launch(2, "say", 0);
  const auto middle = hosts.launch(3, "say", 1);
  EXPECT_EQ(sorted_lines(first->read_all()),
            "rank 0 of 6 local 0 of 2 node 0 of 3 restart 0\n"
            "rank 1 of 6 local 1 of 2 node 0 of 3 restart 0");
  EXPECT_EQ(sorted_lines(middle->read_all()),
            "rank 2 of 6 local 0 of 3 node 1 of 3 restart 0\n"
            "rank 3 of 6 local 1 of 3 node 1 of 3 restart 0\n"
            "rank 4 of 6 local 2 of 3 node 1 of 3 restart 0");
  EXPECT_EQ(last->read_all(), "rank 5 of 6 local 0 of 1 node 2 of 3 restart 0\n");
  for (const auto* launch : {&first, &middle, &last}) EXPECT_EQ((*launch)->wait(), 0);
}

TEST(Rendezvous, AllAreToldOneMasterAndOneRun) {
  Hosts hosts(2);
  const auto a = hosts.launch(1, "master"), b = hosts.launch(1, "master");
  const std::string told = a->read_all();
  EXPECT_THAT(told, MatchesRegex("127\\.0\\.0\\.1:[0-9]+ fsdp-run-.+\n"));
  EXPECT_EQ(told, b->read_all());
  EXPECT_EQ(a->wait(), 0);
  EXPECT_EQ(b->wait(), 0);
}

TEST(Rendezvous, NodesWithoutANumberTakeTheFreeOnes) {
  Hosts hosts(2);
  const auto given = hosts.launch(1, "say", 0), dealt = hosts.launch(1, "say");
  EXPECT_THAT(dealt->read_all(), StartsWith("rank 1 of 2 "));
  EXPECT_THAT(given->read_all(), StartsWith("rank 0 of 2 "));
  EXPECT_EQ(given->wait(), 0);
  EXPECT_EQ(dealt->wait(), 0);
}

TEST(Rendezvous, NamesTheNodesThatAreMissing) {
  Hosts hosts(3);
  hosts.options().timeout_seconds = 1;
  const auto launch = hosts.launch(1, "say", 1);
  EXPECT_THAT(launch->read_all(),
              MatchesRegex("launcher: nodes 0, 2 did not arrive at rendezvous 127.0.0.1:[0-9]+ "
                           "within 1 s: node 1 \\(.*\\) is there, 3 wanted\n"));
  EXPECT_EQ(launch->wait(), 1);
}

TEST(Rendezvous, StartsWithFewerWhereTheyAreEnough) {
  Hosts hosts(3);
  hosts.options().timeout_seconds = 1;
  hosts.options().min_nodes = 1;
  const auto launch = hosts.launch(1, "say");
  EXPECT_THAT(launch->read_all(),
              MatchesRegex("fsdp-run: nodes 1, 2 did not arrive at .*; starting with 1 node\n"
                           "rank 0 of 1 local 0 of 1 node 0 of 1 restart 0\n"));
  EXPECT_EQ(launch->wait(), 0);
}

TEST(Rendezvous, SaysThatNobodyIsAtTheEndpoint) {
  Hosts hosts(2);
  hosts.options().timeout_seconds = 1;
  hosts.options().rdzv_endpoint = "192.0.2.1:29400";  // an address only for documentation
  const auto launch = hosts.launch(1, "say");
  EXPECT_THAT(launch->read_all(), StartsWith("launcher: cannot join rendezvous 192.0.2.1:29400 "
                                             "within 1 s: "));
  EXPECT_EQ(launch->wait(), 1);
}

TEST(Rendezvous, LaunchersThatContradictEachOtherAreToldSo) {
  Hosts two(2), three(two);
  three.options().nnodes = 3;
  const auto a = two.launch(1, "say");
  await_meeting(two.port());
  const auto b = three.launch(1, "say");
  for (const auto* launch : {&a, &b}) {
    EXPECT_THAT((*launch)->read_all(), HasSubstr("--nnodes is 2 there and 3 on "));
    EXPECT_EQ((*launch)->wait(), 2);
  }
  Hosts hosts(2);
  const auto c = hosts.launch(1, "say", 1), d = hosts.launch(1, "say", 1);
  for (const auto* launch : {&c, &d}) {
    EXPECT_THAT((*launch)->read_all(), HasSubstr("two launchers say --node-rank 1, on "));
    EXPECT_EQ((*launch)->wait(), 2);
  }
}

// On a busy machine another launcher may end the meeting before the coordinator's own launcher
// joins.
TEST(Rendezvous, ALauncherThatComesAfterAContradictionIsToldSo) {
  Hosts two(2), three(two);
  three.options().nnodes = 3;
  auto secret = JobSecret::from_environment();
  int port = two.port();
  auto listener = Listener::open({"127.0.0.1"}, port);
  ASSERT_TRUE(secret.ok() && listener.ok());
  LaunchPlan plan;
  plan.options = two.options();
  auto coordinator = Coordinator::start(*std::move(listener), *secret, {"127.0.0.1", port}, plan);
  ASSERT_TRUE(coordinator.ok());
  const auto b = three.launch(1, "say");
  EXPECT_THAT(b->read_all(), HasSubstr("--nnodes is 2 there and 3 on "));
  const auto a = two.launch(1, "say");
  EXPECT_THAT(a->read_all(), HasSubstr("--nnodes is 2 there and 3 on "));
  EXPECT_EQ(a->wait(), 2);
}

TEST(Rendezvous, AnotherJobIsKeptOut) {
  Hosts hosts(2), other(hosts);
  other.options().rdzv_id = "other";
  other.options().timeout_seconds = 1;
  const auto a = hosts.launch(1, "say");
  await_meeting(hosts.port());
  const auto stranger = other.launch(1, "say");
  EXPECT_THAT(stranger->read_all(), HasSubstr("holds the job --rdzv-id '', this one is 'other'"));
  EXPECT_EQ(stranger->wait(), 1);
  const auto b = hosts.launch(1, "say");
  EXPECT_EQ(a->wait(), 0);
  EXPECT_EQ(b->wait(), 0);
}

// Sends bytes to a port on this host, and waits until the connection is closed.
void send_garbage(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  char c;
  EXPECT_LE(recv(fd, &c, 1, 0), 0);
  close(fd);
}

TEST(Rendezvous, StrangersDoNoHarm) {
  Hosts hosts(2);
  const auto a = hosts.launch(1, "say");
  await_meeting(hosts.port());
  send_garbage(hosts.port(), "GET / HTTP/1.1\r\n\r\n");
  send_garbage(hosts.port(), std::string("\0\0\0\2{}", 6));
  send_garbage(hosts.port(), std::string("\0\0\0\x10{\"kind\":\"hello\"}", 20));
  const auto b = hosts.launch(1, "say");
  EXPECT_EQ(a->wait(), 0);
  EXPECT_EQ(b->wait(), 0);
}

// ---- Failure ----

TEST(Rendezvous, AFailureOnOneHostEndsAll) {
  for (const std::string scene : {"fails", "wrong input"}) {
    Hosts hosts(2);
    const double begin = now_seconds();
    const auto a = hosts.launch(1, scene, 0), b = hosts.launch(1, scene, 1);
    EXPECT_EQ(a->read_all(), "ready\n");
    EXPECT_EQ(b->read_all(), "error: of rank 1\n");
    for (const auto* launch : {&a, &b}) EXPECT_EQ((*launch)->wait(), scene == "fails" ? 1 : 2);
    EXPECT_LT(now_seconds() - begin, 12);
  }
}

TEST(Rendezvous, ALauncherSpeaksWhenNoRankDoes) {
  Hosts hosts(2);
  const auto a = hosts.launch(1, "killed", 0);
  await_meeting(hosts.port());  // `a` hosts the meeting and reports for all
  const auto b = hosts.launch(1, "killed", 1);
  EXPECT_THAT(
      a->read_all(),
      MatchesRegex("ready\nlauncher: rank 1 \\(pid [0-9]+ on .*\\) was killed by signal 9\n"));
  EXPECT_EQ(b->read_all(), "");
  EXPECT_EQ(a->wait(), 1);
  EXPECT_EQ(b->wait(), 1);
}

TEST(Rendezvous, AllAreStartedAgain) {
  Hosts hosts(2);
  hosts.options().max_restarts = 1;
  const auto a = hosts.launch(2, "fails", 0);
  await_meeting(hosts.port());
  const auto b = hosts.launch(1, "fails", 1);
  const std::string said = a->read_all();
  EXPECT_THAT(said, HasSubstr("fsdp-run: restart 1 of 1: from where the run began, for nothing is "
                              "saved without --checkpoint-dir\n"));
  EXPECT_THAT(said, HasSubstr("rank 1 of 3 local 1 of 2 node 0 of 2 restart 1 as given\n"));
  EXPECT_EQ(b->read_all(), "ready\nrank 2 of 3 local 0 of 1 node 1 of 2 restart 1 as given\n");
  EXPECT_EQ(a->wait(), 0);
  EXPECT_EQ(b->wait(), 0);
}

TEST(Rendezvous, NotForEver) {
  Hosts hosts(2);
  hosts.options().max_restarts = 1;
  const auto a = hosts.launch(1, "fails always", 0);
  usleep(200'000);  // `a` hosts the meeting and tells when all start again
  const auto b = hosts.launch(1, "fails always", 1);
  EXPECT_EQ(b->read_all(), "error: of rank 1\nerror: of rank 1\n");
  EXPECT_EQ(a->wait(), 1);
  EXPECT_EQ(b->wait(), 1);
}

TEST(Rendezvous, GoesOnWithoutAHostThatIsGone) {
  Hosts hosts(3);
  hosts.options().max_restarts = 1;
  hosts.options().min_nodes = 2;
  const auto a = hosts.launch(1, "waits", 0);
  await_meeting(hosts.port());
  const auto c = hosts.launch(1, "waits", 2), b = hosts.launch(1, "waits", 1);
  EXPECT_EQ(a->read_line(), "ready");
  kill(b->pid(), SIGKILL);
  const std::string said = a->read_all();
  EXPECT_THAT(said, HasSubstr("fsdp-run: node 1 ("));
  EXPECT_THAT(said, HasSubstr(") is gone; restart 1 of 1: "));
  EXPECT_THAT(said, HasSubstr("rank 0 of 2 local 0 of 1 node 0 of 2 restart 1 as given\n"));
  EXPECT_THAT(c->read_all(),
              HasSubstr("rank 1 of 2 local 0 of 1 node 1 of 2 restart 1 as given\n"));
  EXPECT_EQ(a->wait(), 0);
  EXPECT_EQ(c->wait(), 0);
}

TEST(Rendezvous, AHostThatComesBackTakesItsPlace) {
  Hosts hosts(2);
  hosts.options().max_restarts = 1;
  const auto a = hosts.launch(1, "waits", 0);
  await_meeting(hosts.port());
  const auto b = hosts.launch(1, "waits", 1);
  EXPECT_EQ(a->read_line(), "ready");
  kill(b->pid(), SIGKILL);
  const auto back = hosts.launch(1, "say", 1);
  EXPECT_EQ(back->read_all(), "rank 1 of 2 local 0 of 1 node 1 of 2 restart 1 as given\n");
  EXPECT_EQ(a->wait(), 0);
  EXPECT_EQ(back->wait(), 0);
}

TEST(Rendezvous, EndsWithTheLauncherThatHostsIt) {
  Hosts hosts(2);
  const auto a = hosts.launch(1, "waits", 1);
  await_meeting(hosts.port());
  const auto b = hosts.launch(1, "waits", 0);
  EXPECT_EQ(b->read_line(), "ready");
  kill(a->pid(), SIGKILL);
  EXPECT_THAT(b->read_all(), MatchesRegex("launcher: the launcher at rendezvous .* is gone\n"));
  EXPECT_EQ(b->wait(), 1);
}

TEST(Rendezvous, SignalsAreNoReasonToStartAgain) {
  Hosts hosts(2);
  hosts.options().max_restarts = 5;
  const auto a = hosts.launch(1, "waits", 1), b = hosts.launch(1, "waits", 0);
  EXPECT_EQ(b->read_line(), "ready");
  kill(b->pid(), SIGTERM);
  EXPECT_EQ(b->wait(), 128 + SIGTERM);
  EXPECT_EQ(a->wait(), 128 + SIGTERM);
}

}  // namespace rendezvous_test
}  // namespace ofsdp

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--as-rank") == 0)
    return ofsdp::rendezvous_test::be_rank(argv[2]);
  testing::InitGoogleMock(&argc, argv);
  setenv("OFSDP_SECRET", "of the tests", 0);
  return RUN_ALL_TESTS();
}
