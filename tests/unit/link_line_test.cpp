// A peer that asks for ever and reads no answer: the line breaks before it fills the memory.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "fsdp/comm/hosts/host_link.h"
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
  while (open && asked < 100 * LinkLine::kMaxPending) {
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
  for (size_t i = 0; i < 3 * LinkLine::kMaxPending; ++i) {
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

// A rank says who prints the failure, and ends. Another was about to ask it, and still hears that.
TEST(LinkLineEnd, LastWordsAreReadAfterAWriteThatFailed) {
  const UniqueFd listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listening.get(), generic, size), 0);
  ASSERT_EQ(listen(listening.get(), 1), 0);
  ASSERT_EQ(getsockname(listening.get(), generic, &size), 0);
  UniqueFd theirs(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(theirs.get(), generic, size), 0);
  LinkLine ours(1, UniqueFd(accept(listening.get(), nullptr, nullptr)));

  const LinkHeader failed{.kind = LinkKind::kFailed, .value = 257};
  ASSERT_EQ(send(theirs.get(), &failed, sizeof failed, 0), ssize_t{sizeof failed});
  theirs.reset();
  const auto flush = [&] {
    ours.queue({.kind = LinkKind::kClaim});
    return ours.flush([](const LinkAnswer&) {});
  };
  while (flush()) {
  }
  uint64_t heard = 0;
  int error = 0;
  EXPECT_FALSE(ours.receive(
      [&](const LinkHeader& header, std::byte*&) {
        heard = header.value;
        return true;
      },
      [](const LinkHeader&) {}, error));
  EXPECT_EQ(heard, 257u);
}

}  // namespace
}  // namespace ofsdp::fsdp
