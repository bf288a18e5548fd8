// The secret of a job and the challenge made with it: who passes, who does not (another secret,
// words from another connection, the door's own words repeated), and that strangers wait
// together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "fsdp/comm/store/doorkeeper.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp::fsdp {
namespace {

using testing::HasSubstr;
using Side = Challenge::Side;
using State = Challenge::State;

// The proof is Python's hmac over "28:" and the text in RFC 4231's test case 2.
TEST(JobSecret, ProofsAreHmacSha256) {
  EXPECT_EQ(JobSecret("Jefe").proof({"what do ya want for nothing?"}),
            "f9a7f5b9c4118c0f397a50b3a495f455c6666f75f95db0d20b32f7e7c995ee77");
  EXPECT_NE(JobSecret("Jefe").proof({"ab", "c"}), JobSecret("Jefe").proof({"a", "bc"}));
  EXPECT_TRUE(JobSecret("a").proves(JobSecret("a").proof({"x"}), {"x"}));
  EXPECT_FALSE(JobSecret("a").proves(JobSecret("b").proof({"x"}), {"x"}));
  EXPECT_FALSE(JobSecret("a").proves("", {"x"}));
}

class SecretFile : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    unsetenv("OFSDP_SECRET_FILE");
    unsetenv("OFSDP_SECRET");
  }
  void write(const std::string& text, mode_t mode) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
    setenv("OFSDP_SECRET_FILE", path_.c_str(), 1);
  }
  static std::string refusal() {
    auto secret = JobSecret::from_environment();
    return secret.ok() ? "none" : secret.error().message();
  }
  testing_data::TempFolder folder_;
  const std::string path_ = folder_.path() + "/secret";
};

TEST_F(SecretFile, IsItsOwnersAlone) {
  write("of the job\n", 0600);
  EXPECT_EQ(JobSecret::from_environment()->bytes(), "of the job");
  write("of the job", 0400);
  EXPECT_EQ(JobSecret::from_environment()->bytes(), "of the job");
  write("of the job", 0640);
  EXPECT_THAT(refusal(), HasSubstr("expected a file that its owner alone can read (mode 0600), "
                                   "found mode 0640"));
  write("\n", 0600);
  EXPECT_THAT(refusal(), HasSubstr("found an empty line"));
  write("", 0600);
  EXPECT_THAT(refusal(), HasSubstr("expected 1 to 4096 bytes, found 0"));
}

TEST_F(SecretFile, ComesBeforeTheVariable) {
  EXPECT_TRUE(JobSecret::from_environment()->empty());
  setenv("OFSDP_SECRET", "by name", 1);
  EXPECT_EQ(JobSecret::from_environment()->bytes(), "by name");
  write("by file", 0600);
  EXPECT_EQ(JobSecret::from_environment()->bytes(), "by file");
  unlink(path_.c_str());
  EXPECT_THAT(refusal(), HasSubstr("OFSDP_SECRET_FILE: " + path_));
  unsetenv("OFSDP_SECRET_FILE");
  setenv("OFSDP_SECRET", "", 1);
  EXPECT_THAT(refusal(), HasSubstr("OFSDP_SECRET: expected a secret, found nothing"));
}

// Both ends of one connection.
struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    connects = Store(UniqueFd(fds[0]));
    accepts = Store(UniqueFd(fds[1]));
  }
  Store connects, accepts;
};

struct Verdict {
  State connects, accepts;
};

Verdict meet(const JobSecret& one, const std::string& purpose, const JobSecret& other,
             const std::string& other_purpose) {
  Ends ends;
  Challenge connects(one, purpose, Side::kConnects), accepts(other, other_purpose, Side::kAccepts);
  for (int i = 0; i < 8; ++i) {
    connects.look(ends.connects);
    ends.accepts.pump();
    accepts.look(ends.accepts);
    ends.connects.pump();
  }
  return {connects.look(ends.connects), accepts.look(ends.accepts)};
}

TEST(Challenge, IsPassedByWhoHasTheSecret) {
  const JobSecret secret("a"), another("b"), none;
  const auto both = [&](const JobSecret& one, const JobSecret& other, State expected) {
    const Verdict found = meet(one, "links", other, "links");
    EXPECT_EQ(found.connects, expected);
    EXPECT_EQ(found.accepts, expected);
  };
  both(secret, secret, State::kPassed);
  both(none, none, State::kPassed);
  both(another, secret, State::kTurnedAway);
  both(none, secret, State::kTurnedAway);
  both(secret, none, State::kTurnedAway);
  const Verdict elsewhere = meet(secret, "links", secret, "launchers");
  EXPECT_EQ(elsewhere.accepts, State::kTurnedAway);
}

// Runs a stranger that hears the nonce and then sends the messages of `says`.
State judged(const JobSecret& secret, const std::function<void(Ends&, const Json&)>& says) {
  Ends ends;
  Challenge accepts(secret, "links", Side::kAccepts);
  ends.connects.set("challenge", {{"nonce", drawn_nonce()}});
  ends.accepts.pump();
  accepts.look(ends.accepts);
  ends.connects.pump();
  const auto heard = ends.connects.take("challenge");
  EXPECT_TRUE(heard.has_value());
  says(ends, *heard);
  ends.accepts.pump();
  const State state = accepts.look(ends.accepts);
  ends.connects.pump();
  EXPECT_FALSE(ends.connects.take("proof").has_value()) << "a stranger has heard a proof";
  return state;
}

TEST(Challenge, WhatWasSaidElsewhereProvesNothing) {
  const JobSecret secret("a");
  // All messages on a connection where both ends have the secret.
  Ends good;
  Challenge connects(secret, "links", Side::kConnects), accepts(secret, "links", Side::kAccepts);
  connects.look(good.connects);
  good.accepts.pump();
  accepts.look(good.accepts);
  good.connects.pump();
  connects.look(good.connects);
  good.accepts.pump();
  const Json proof = *good.accepts.get("proof");
  EXPECT_EQ(judged(secret, [&](Ends& ends, const Json&) { ends.connects.set("proof", proof); }),
            State::kTurnedAway);
  // A second connection proves nothing to an end that reflects the first one's challenge.
  EXPECT_EQ(judged(secret,
                   [&](Ends& ends, const Json& heard) {
                     Ends second;
                     Challenge other(secret, "links", Side::kAccepts);
                     second.connects.set("challenge", heard);
                     second.accepts.pump();
                     other.look(second.accepts);
                     second.connects.pump();
                     const auto mirrored = second.connects.take("proof");
                     EXPECT_FALSE(mirrored.has_value());
                     ends.connects.set("proof", mirrored.value_or(Json{{"mac", ""}}));
                   }),
            State::kTurnedAway);
  EXPECT_EQ(judged(secret, [](Ends& ends, const Json&) { ends.connects.set("hello"); }),
            State::kTurnedAway);
  EXPECT_EQ(judged(secret, [](Ends& ends, const Json&) { ends.connects.set("proof"); }),
            State::kTurnedAway);
}

// More strangers than there is room for: some silent, some send a byte now and then. A rank with
// the secret comes in among them.
TEST(Doorkeeper, StrangersHoldUpNobody) {
  const JobSecret secret("a");
  int port = 0;
  auto listener = Listener::open({"127.0.0.1"}, port);
  ASSERT_TRUE(listener.ok());
  Doorkeeper door(*listener, secret, "links", "hello");
  std::vector<UniqueFd> strangers;
  const auto deadline = StreamClock::now() + std::chrono::seconds(60);
  const auto connect = [&] { return connect_to("127.0.0.1", port, deadline).socket; };
  const auto look = [&] {
    door.wait({}, StreamClock::now());
    return door.let_in();
  };
  for (int i = 0; i < 400; ++i) {
    strangers.push_back(connect());
    if (i % 2 == 0) send(strangers.back().get(), "\0\0\377\0{", 5, MSG_NOSIGNAL);
    EXPECT_TRUE(look().empty());
  }
  Store ours(connect());
  Challenge challenge(secret, "links", Side::kConnects);
  std::vector<Store> in;
  for (int rounds = 0; in.empty() && rounds < 100; ++rounds) {
    ours.pump();
    if (challenge.look(ours) == State::kPassed) ours.set("hello", {{"name", "ours"}});
    for (const UniqueFd& stranger : strangers) send(stranger.get(), " ", 1, MSG_NOSIGNAL);
    in = look();
    usleep(1000);
  }
  ASSERT_EQ(in.size(), 1U);
  EXPECT_EQ(in[0].take("hello")->value("name", ""), "ours");
  EXPECT_EQ(door.turned_away(), 0);
}

TEST(HeldPort, IsFreeForItsOwnersListenerAlone) {
  const HeldPort held = HeldPort::any();
  int port = held.port();
  EXPECT_FALSE(Listener::open({"127.0.0.1"}, port).ok());
  EXPECT_TRUE(Listener::open({"127.0.0.1"}, port, PortUse::kRowElementsPerThread).ok());
  EXPECT_EQ(port, held.port());
}

// About one in fifty ports that are free at the first address is taken at the second.
TEST(Listener, FindsAPortThatIsFreeAtAllAddresses) {
  std::vector<UniqueFd> others;
  for (int i = 0; i < 400; ++i) {
    others.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    ASSERT_EQ(bind(others.back().get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  for (int i = 0; i < 400; ++i) {
    int port = 0;
    const auto listener = Listener::open({"127.0.0.1", "127.0.0.2"}, port);
    ASSERT_TRUE(listener.ok()) << i << ": " << listener.error().message();
    EXPECT_NE(port, 0);
  }
}

TEST(Doorkeeper, TurnsAwayWhoHasAnotherSecret) {
  const JobSecret secret("a"), another("b");
  int port = 0;
  auto listener = Listener::open({"127.0.0.1"}, port);
  ASSERT_TRUE(listener.ok());
  Doorkeeper door(*listener, secret, "links", "hello");
  const auto deadline = StreamClock::now() + std::chrono::seconds(60);
  Store theirs(connect_to("127.0.0.1", port, deadline).socket);
  Challenge challenge(another, "links", Side::kConnects);
  while (challenge.look(theirs) == State::kOpen && StreamClock::now() < deadline) {
    door.wait({}, StreamClock::now());
    EXPECT_TRUE(door.let_in().empty());
    theirs.pump();
  }
  EXPECT_EQ(challenge.look(theirs), State::kTurnedAway);
  EXPECT_EQ(door.turned_away(), 1);
}

}  // namespace
}  // namespace ofsdp::fsdp
