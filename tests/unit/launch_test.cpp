// The launcher's parts that need no process: endpoints, messages, the numbers of hosts, and what a
// rank does otherwise after a restart.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "runtime/cli/launch/endpoint.h"
#include "runtime/cli/launch/node_table.h"
#include "runtime/cli/launch/restart.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using nlohmann::json;

TEST(Endpoint, HostAndPort) {
  const auto parsed = [](const std::string& text) {
    const auto endpoint = parse_endpoint(text);
    return endpoint.ok() ? endpoint->text() : endpoint.error().message();
  };
  EXPECT_EQ(parsed("a"), "a:29400");
  EXPECT_EQ(parsed("10.0.0.1:5"), "10.0.0.1:5");
  EXPECT_EQ(parsed("[fe80::1]:5"), "[fe80::1]:5");
  EXPECT_EQ(parsed("fe80::1"), "[fe80::1]:29400");
  for (const std::string wrong : {"a:", "a:0", "a:65536", ":5", "a:b", "[::1]5", ""}) {
    EXPECT_EQ(parsed(wrong),
              format_text("--rdzv-endpoint: expected HOST:PORT with a port from 1 to 65535, found "
                          "'{}'",
                          wrong));
  }
}

class Channels : public testing::Test {
 protected:
  Channels() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) abort();
    raw_ = UniqueFd(ends[0]);
    channel_ = NodeChannel(UniqueFd(ends[1]));
  }

  void put(const std::string& bytes) {
    EXPECT_EQ(write(raw_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  static std::string framed(const std::string& text) {
    return std::string("\0\0\0", 3) + static_cast<char>(text.size()) + text;
  }

  UniqueFd raw_;
  NodeChannel channel_;
};

TEST_F(Channels, MessagesComeWholeAndInOrder) {
  const std::string bytes = framed(R"({"kind":"a"})") + framed(R"({"kind":"b"})");
  for (size_t i = 0; i < bytes.size(); ++i) {
    put(bytes.substr(i, 1));
    channel_.pump();
    EXPECT_TRUE(i + 1 >= bytes.size() / 2 || !channel_.receive());
  }
  EXPECT_EQ(kind_of(*channel_.receive()), "a");
  EXPECT_EQ(kind_of(*channel_.receive()), "b");
  EXPECT_FALSE(channel_.receive());
  EXPECT_FALSE(channel_.closed());
}

TEST_F(Channels, LastWordsCount) {
  put(framed(R"({"kind":"a"})"));
  raw_.reset();
  channel_.pump();
  EXPECT_TRUE(channel_.closed());
  EXPECT_EQ(kind_of(*channel_.receive()), "a");
}

TEST_F(Channels, WhatIsNoMessageClosesThem) {
  for (const std::string& bytes :
       {framed("[]"), framed("{}"), framed(R"({"kind":1})"), framed("{"), framed("\xff"),
        std::string("\xff\xff\xff\xff"), std::string("\0\1\0\1", 4)}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    raw_ = UniqueFd(ends[0]);
    channel_ = NodeChannel(UniqueFd(ends[1]));
    put(bytes);
    channel_.pump();
    EXPECT_FALSE(channel_.receive());
    EXPECT_TRUE(channel_.closed()) << bytes;
  }
}

TEST_F(Channels, APeerThatDoesNotReadFillsNoMemory) {
  const json message{{"kind", "a"}, {"text", std::string(60'000, 'x')}};
  for (int i = 0; i < 100 && !channel_.closed(); ++i) channel_.send(message);
  EXPECT_TRUE(channel_.closed());
}

TEST(NodeMessages, ReadWhatTheyWrite) {
  Hello hello;
  hello.job = "j\xff";
  hello.node_rank = 3;
  hello.nnodes = 4;
  hello.nproc = 8;
  hello.free_port = 1234;
  hello.host = "h";
  const auto read = read_hello(to_json(hello));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), to_json(hello));
  Turn turn;
  turn.start = true;
  turn.assignment = {1, 2, 3, 4, 5, 6, true, "r", "m", 7};
  EXPECT_EQ(to_json(*read_turn(to_json(turn))), to_json(turn));
  const Outcome outcome{1, true, true, "l"};
  EXPECT_EQ(to_json(*read_outcome(to_json(outcome, 9)), 9), to_json(outcome, 9));
}

TEST(NodeMessages, RefuseWhatIsMissingOrOutOfRange) {
  Turn turn;
  turn.start = true;
  const json good = to_json(turn);
  ASSERT_TRUE(read_turn(good));
  for (const auto& [key, value] : good.items()) {
    if (key == "kind") continue;
    json bad = good;
    bad.erase(key);
    EXPECT_FALSE(read_turn(bad)) << key;
    bad[key] = json::array();
    EXPECT_FALSE(read_turn(bad)) << key;
    bad[key] = value.is_number() ? json(int64_t{1} << 40) : json(std::string(kMostText + 1, 'x'));
    EXPECT_FALSE(read_turn(bad)) << key;
  }
  EXPECT_FALSE(read_hello({{"kind", "hello"}, {"magic", "other"}}));
}

TEST(NodeTable, SeatsAreDealtInOrderOfArrivalAroundThoseThatAreTaken) {
  NodeTable table(4);
  const auto arrive = [&](const std::string& host, int seat) {
    NodeGuest& guest = table.guests().emplace_back();
    guest.hello.host = host;
    guest.seat = seat;
    guest.state = NodeGuest::State::kWaiting;
  };
  arrive("b", 1);
  arrive("a", -1);
  arrive("c", -1);
  EXPECT_EQ(table.deal(), std::vector<int>{3});
  const auto order = [&] {
    std::string hosts;
    for (const NodeGuest* node : table.number()) hosts += node->hello.host;
    return hosts;
  };
  EXPECT_EQ(order(), "abc");
  table.guests().pop_front();  // b is gone, and d comes
  arrive("d", -1);
  EXPECT_EQ(order(), "ac");
  EXPECT_EQ(table.deal(), std::vector<int>{3});
  EXPECT_EQ(order(), "adc");
}

// ---- Restart ----

Status restart(Options& options, int world, const char* how, const char* first_world) {
  const std::map<std::string, const char*> variables = {{"OFSDP_RESTART", how},
                                                        {"OFSDP_FIRST_WORLD", first_world}};
  return apply_restart(options, world, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
}

TEST(Restart, GoesOnFromTheLatestCheckpointOfTheRun) {
  for (const auto& [how, resume] : {std::pair{"latest", "latest"}, {"as given", "ck/step-1"}}) {
    Options options;
    options.checkpoint.resume = "ck/step-1";
    ASSERT_TRUE(restart(options, 2, how, "2").ok());
    EXPECT_EQ(options.checkpoint.resume, resume);
    EXPECT_FALSE(options.batch.given.global_batch_size.value);
  }
}

TEST(Restart, KeepsTheGlobalBatchWithFewerRanks) {
  struct Case {
    int64_t batch, accum;
    const char* first_world;
    int world;
    int64_t new_batch, new_accum;
  };
  for (const Case& c :
       {Case{8, 1, "4", 2, 8, 2}, Case{3, 1, "4", 3, 2, 2}, Case{6, 2, "3", 2, 6, 3},
        Case{1, 1, "6", 2, 1, 3}, Case{5, 1, "3", 5, 3, 1}}) {
    Options options;
    options.batch.given.batch_size = {c.batch, Source::kFlag};
    options.batch.given.grad_accum = {c.accum, Source::kModelYaml};
    ASSERT_TRUE(restart(options, c.world, "latest", c.first_world).ok());
    ASSERT_TRUE(reconcile_batch(options, c.world).ok());
    EXPECT_EQ(options.batch.batch_size, c.new_batch);
    EXPECT_EQ(options.batch.grad_accum, c.new_accum);
    EXPECT_EQ(options.batch.global_batch_size, c.batch * c.accum * std::atoi(c.first_world));
  }
}

TEST(Restart, RefusesAGlobalBatchThatDoesNotDivide) {
  Options options;
  options.batch.given.global_batch_size = {32, Source::kFlag};
  const Status status = restart(options, 3, "latest", "4");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.kind(), ErrorKind::kInput);
  EXPECT_EQ(
      status.message(),
      "restart with 3 ranks: --global-batch-size 32 (4 ranks at first) is not a multiple of 3");
}

}  // namespace
}  // namespace ofsdp
