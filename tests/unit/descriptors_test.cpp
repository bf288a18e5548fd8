// Descriptors between processes, sealed shared memory, and a mapped file that is cut short.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp/comm/local/rendezvous.h"
#include "importer/file/file_mapping.h"
#include "kernels/core/memory.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace descriptors_test {

using onnx_bytes::Folder;

auto open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// One byte with `count` descriptors, which no rank sends.
void send_many(int socket, size_t count) {
  char byte = 'x';
  iovec part{&byte, 1};
  alignas(cmsghdr) char slot[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = slot;
  header.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const control = CMSG_FIRSTHDR(&header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(count * sizeof(int));
  const int fds[4] = {0, 0, 0, 0};
  std::memcpy(CMSG_DATA(control), fds, count * sizeof(int));
  ASSERT_EQ(sendmsg(socket, &header, 0), 1);
}

TEST(FdChannel, MoreThanOneDescriptorIsClosed) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd a(ends[0]), b(ends[1]);
  const auto before = open_descriptors();
  for (const size_t count : {2, 3, 4}) {
    send_many(a.get(), count);
    char byte = 0;
    const Received got = receive_message(b.get(), byte, std::chrono::seconds(5));
    EXPECT_EQ(got.kind, Received::Kind::kClosed) << count;
    EXPECT_FALSE(got.fd.valid());
  }
  EXPECT_EQ(open_descriptors(), before);
  send_many(a.get(), 1);
  char byte = 0;
  const Received got = receive_message(b.get(), byte, std::chrono::seconds(5));
  EXPECT_EQ(got.kind, Received::Kind::kMessage);
  EXPECT_TRUE(got.fd.valid());
}

TEST(SharedMemory, NobodyChangesItsSize) {
  MemoryLedger ledger;
  const Result<Region> region = Region::map(ledger, 10000, Region::Sharing::kShared, "test");
  ASSERT_TRUE(region.ok());
  EXPECT_NE(ftruncate(region->fd(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(region->fd(), 1 << 20), 0);
  std::memset(region->data(), 1, region->bytes());
}

TEST(FileMapping, AFileThatIsCutShortReadsAsZeros) {
  const Folder folder;
  const std::string path = folder.write("file", std::string(5 * 4096 + 10, 'x'));
  const Result<OpenFile> file = open_for_reading(path);
  ASSERT_TRUE(file.ok());
  const Result<FileMapping> mapping = FileMapping::make(*file);
  ASSERT_TRUE(mapping.ok());
  const auto bytes = mapping->bytes();
  EXPECT_EQ(bytes[5 * 4096], std::byte{'x'});
  EXPECT_FALSE(mapping->was_cut());
  std::filesystem::resize_file(path, 4096);
  EXPECT_EQ(bytes[0], std::byte{'x'});
  EXPECT_EQ(bytes[2 * 4096], std::byte{0});
  EXPECT_TRUE(mapping->was_cut());
  EXPECT_EQ(bytes[5 * 4096 + 9], std::byte{0});
}

}  // namespace descriptors_test
}  // namespace ofsdp
