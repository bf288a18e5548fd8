// A peer that asks for ever and reads no answer: its line is broken before it takes the memory.
#include "fsdp/comm/hosts/link_line.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/support/namespaces.h"

namespace ofsdp::fsdp {
namespace {

class LinkLineTest : public testing::Test {
 protected:
  LinkLineTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    theirs = UniqueFd(ends[0]);
    ours = LinkLine(1, UniqueFd(ends[1]));
  }

  UniqueFd theirs;
  LinkLine ours{1, UniqueFd()};
  const LinkHeader question{.kind = LinkKind::kWho};
};

TEST_F(LinkLineTest, AnswersThatNobodyReadsAreBounded) {
  size_t asked = 0;
  bool open = true;
  int error = 0;
  const auto answer = [&](const LinkHeader&, std::byte*&) {
    ours.queue({.kind = LinkKind::kBlame});
    return true;
  };
  while (open && asked < 100 * LinkLine::kMostWaiting) {
    const ssize_t sent =
        send(theirs.get(), &question, sizeof question, MSG_DONTWAIT | MSG_NOSIGNAL);
    asked += sent == static_cast<ssize_t>(sizeof question);
    open = ours.receive(
               answer, [](const LinkHeader&) {}, error) &&
           ours.flush([](const LinkAnswer&) {});
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(error, EPROTO);
}

TEST_F(LinkLineTest, AnswersThatAreReadAreNot) {
  LinkHeader read;
  int error = 0;
  for (size_t i = 0; i < 3 * LinkLine::kMostWaiting; ++i) {
    ASSERT_EQ(send(theirs.get(), &question, sizeof question, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof question));
    const auto answer = [&](const LinkHeader&, std::byte*&) {
      ours.queue({.kind = LinkKind::kBlame});
      return true;
    };
    ASSERT_TRUE(ours.receive(
        answer, [](const LinkHeader&) {}, error));
    ASSERT_TRUE(ours.flush([](const LinkAnswer&) {}));
    ASSERT_EQ(recv(theirs.get(), &read, sizeof read, 0), static_cast<ssize_t>(sizeof read));
  }
}

}  // namespace
}  // namespace ofsdp::fsdp
