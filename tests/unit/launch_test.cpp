// The launcher's parts that need no process: endpoints, messages, the numbers of hosts, and the
// changes for a rank after a restart.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "runtime/cli/launch/node_link.h"
#include "runtime/cli/launch/node_messages.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace launch_test {

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

class Stores : public testing::Test {
 protected:
  Stores() { connect(); }
  void connect() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) abort();
    raw_ = UniqueFd(ends[0]);
    store_ = Store(UniqueFd(ends[1]));
  }

  void put(const std::string& bytes) {
    EXPECT_EQ(write(raw_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  static std::string framed(const std::string& text) {
    return std::string("\0\0\0", 3) + static_cast<char>(text.size()) + text;
  }

  UniqueFd raw_;
  Store store_;
};

TEST_F(Stores, ValuesComeWhole) {
  const std::string bytes = framed(R"({"kind":"a"})") + framed(R"({"kind":"b"})");
  for (size_t i = 0; i < bytes.size(); ++i) {
    put(bytes.substr(i, 1));
    store_.pump();
    EXPECT_EQ(store_.get("a") != nullptr, i + 1 >= bytes.size() / 2);
    EXPECT_EQ(store_.get("b") != nullptr, i + 1 == bytes.size());
  }
  EXPECT_TRUE(store_.take("a"));
  EXPECT_FALSE(store_.take("a"));
  EXPECT_FALSE(store_.closed());
}

TEST_F(Stores, TheNewestValueCounts) {
  put(framed(R"({"kind":"a","n":1})") + framed(R"({"kind":"a","n":2})"));
  ASSERT_TRUE(store_.wait("a", StreamClock::now() + std::chrono::seconds(5)));
  store_.pump();
  EXPECT_EQ(store_.get("a")->at("n"), 2);
}

TEST_F(Stores, WaitEndsWithTheDeadlineAndWithTheConnection) {
  EXPECT_FALSE(store_.wait("a", StreamClock::now() + std::chrono::milliseconds(20)));
  raw_.reset();
  EXPECT_FALSE(store_.wait("a", StreamClock::now() + std::chrono::hours(1)));
}

TEST_F(Stores, LastWordsCount) {
  put(framed(R"({"kind":"a"})"));
  raw_.reset();
  store_.pump();
  EXPECT_TRUE(store_.closed());
  EXPECT_TRUE(store_.get("a"));
}

// After a handshake a socket can serve another purpose.
TEST_F(Stores, NothingIsReadAfterTheValueThatIsWaitedFor) {
  put(framed(R"({"kind":"a"})") + "xyz");
  ASSERT_TRUE(store_.wait("a", StreamClock::now() + std::chrono::seconds(5)));
  const UniqueFd socket = store_.release();
  char rest[8] = "";
  EXPECT_EQ(read(socket.get(), rest, sizeof rest), 3);
  EXPECT_STREQ(rest, "xyz");
}

TEST_F(Stores, WhatIsNoValueClosesThem) {
  for (const std::string& bytes :
       {framed(""), framed("[]"), framed("{}"), framed(R"({"kind":1})"), framed("{"),
        framed("\xff"), std::string("\xff\xff\xff\xff"), std::string("\0\1\0\1", 4)}) {
    connect();
    put(bytes);
    store_.pump();
    EXPECT_TRUE(store_.empty());
    EXPECT_TRUE(store_.closed()) << bytes;
  }
}

TEST_F(Stores, KeysAreBounded) {
  for (size_t i = 0; i <= Store::kMaxKeys; ++i) put(framed(format_text("{{\"kind\":\"{}\"}}", i)));
  for (int i = 0; i < 10; ++i) store_.pump();
  EXPECT_TRUE(store_.closed());
}

TEST_F(Stores, APeerThatDoesNotReadFillsNoMemory) {
  const json value{{"text", std::string(60'000, 'x')}};
  for (int i = 0; i < 100 && !store_.closed(); ++i) store_.set("a", value);
  EXPECT_TRUE(store_.closed());
}

TEST(NodeMessages, ReadWhatTheyWrite) {
  const NodeHello hello{
      .job = "j\xff", .node_rank = 3, .nnodes = 4, .nproc = 8, .free_port = 1234, .host = "h"};
  const auto read = read_hello(hello_value(hello));
  ASSERT_TRUE(read);
  EXPECT_EQ(hello_value(*read), hello_value(hello));
  Turn turn;
  turn.start = true;
  turn.assignment = {1, 2, 3, 4, 5, 6, true, "r", "m", 7};
  EXPECT_EQ(to_value(*from_value<Turn>(to_value(turn))), to_value(turn));
  const Outcome outcome{1, true, true, "l", 9};
  EXPECT_EQ(to_value(*from_value<Outcome>(to_value(outcome))), to_value(outcome));
}

TEST(NodeMessages, OneOfAnotherVersionHasItsVersionAlone) {
  json value = hello_value({.version = kRendezvousVersion + 1, .free_port = 1});
  value.erase("job");
  EXPECT_EQ(read_hello(value)->version, kRendezvousVersion + 1);
}

TEST(NodeMessages, RefuseWhatIsMissingOrOutOfRange) {
  Turn turn;
  turn.start = true;
  const json good = to_value(turn);
  ASSERT_TRUE(from_value<Turn>(good));
  for (const auto& [key, value] : good.items()) {
    json bad = good;
    bad.erase(key);
    EXPECT_FALSE(from_value<Turn>(bad)) << key;
    bad[key] = json::array();
    EXPECT_FALSE(from_value<Turn>(bad)) << key;
    bad[key] = value.is_number() ? json(int64_t{1} << 40)
                                 : json(std::string(StoreFields::kMaxText + 1, 'x'));
    EXPECT_FALSE(from_value<Turn>(bad)) << key;
  }
  EXPECT_FALSE(read_hello({{"magic", "other"}}));
}

TEST(NodeTable, SeatsAreDealtInOrderOfArrivalAroundThoseThatAreTaken) {
  NodeTable table(4);
  const auto arrive = [&](const std::string& host, int seat) {
    NodeClient& client = table.clients().emplace_back();
    client.hello.host = host;
    client.seat = seat;
    client.state = NodeClient::State::kWaiting;
  };
  arrive("b", 1);
  arrive("a", -1);
  arrive("c", -1);
  EXPECT_EQ(table.deal(), std::vector<int>{3});
  const auto order = [&] {
    std::string hosts;
    for (const NodeClient* node : table.number()) hosts += node->hello.host;
    return hosts;
  };
  EXPECT_EQ(order(), "abc");
  table.clients().pop_front();  // b is gone, and d comes
  arrive("d", -1);
  EXPECT_EQ(order(), "ac");
  EXPECT_EQ(table.deal(), std::vector<int>{3});
  EXPECT_EQ(order(), "adc");
}

// ---- Restart ----

Result<Options> restart(const Options& options, int world, const char* how,
                        const char* first_world) {
  const std::map<std::string, const char*> variables = {{"OFSDP_RESTART", how},
                                                        {"OFSDP_FIRST_WORLD", first_world}};
  return after_restart(options, world, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
}

TEST(Restart, GoesOnFromTheLatestCheckpointOfTheRun) {
  for (const auto& [how, resume] : {std::pair{"latest", "latest"}, {"as given", "ck/step-1"}}) {
    Options options;
    options.checkpoint.resume = "ck/step-1";
    const Result<Options> restarted = restart(options, 2, how, "2");
    ASSERT_TRUE(restarted.ok());
    EXPECT_EQ(restarted->checkpoint.resume, resume);
    EXPECT_FALSE(restarted->batch.global_batch_size.value);
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
    options.batch.batch_size = {c.batch, Source::kFlag};
    options.batch.grad_accum = {c.accum, Source::kModelYaml};
    const Result<Options> restarted = restart(options, c.world, "latest", c.first_world);
    ASSERT_TRUE(restarted.ok());
    const auto sizes = resolve_batch(restarted->batch, Determinism::kOn, c.world);
    ASSERT_TRUE(sizes.ok());
    EXPECT_EQ(sizes->batch_size, c.new_batch);
    EXPECT_EQ(sizes->grad_accum, c.new_accum);
    EXPECT_EQ(sizes->global_batch_size, c.batch * c.accum * std::atoi(c.first_world));
  }
}

TEST(Restart, RefusesAGlobalBatchThatDoesNotDivide) {
  Options options;
  options.batch.global_batch_size = {32, Source::kFlag};
  const Result<Options> restarted = restart(options, 3, "latest", "4");
  ASSERT_FALSE(restarted.ok());
  EXPECT_EQ(restarted.error().kind(), ErrorKind::kInput);
  EXPECT_EQ(
      restarted.error().message(),
      "restart with 3 ranks: --global-batch-size 32 (4 ranks at first) is not a multiple of 3");
}

}  // namespace launch_test
}  // namespace ofsdp
