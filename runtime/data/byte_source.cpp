#include "runtime/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ofsdp::runtime {

Result<ByteSource> ByteSource::open(const std::string& path) {
  ByteSource source;
  source.path_ = path;
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  source.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info {};
  if (source.fd_ < 0 || fstat(source.fd_, &info) != 0) {
    return input_error("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return input_error("{}: expected a file, found something else", path);
  source.size_ = static_cast<uint64_t>(info.st_size);
  return source;
}

ByteSource ByteSource::memory(std::string path, std::span<const std::byte> bytes) {
  ByteSource source;
  source.path_ = std::move(path);
  source.size_ = bytes.size();
  source.memory_ = bytes.data();
  return source;
}

ByteSource::ByteSource(ByteSource&& other) noexcept { *this = std::move(other); }

ByteSource& ByteSource::operator=(ByteSource&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  return *this;
}

ByteSource::~ByteSource() {
  if (fd_ >= 0) close(fd_);
}

Status ByteSource::read(uint64_t offset, std::span<std::byte> dst) const {
  if (fd_ >= 0) return read_file(offset, dst);
  if (dst.empty()) return ok_status();
  OFSDP_CHECK(offset + dst.size() <= size_, "{}: {} + {} of {} bytes", path_, offset, dst.size(),
              size_);
  std::memcpy(dst.data(), memory_ + offset, dst.size());
  return ok_status();
}

Status ByteSource::read_file(uint64_t offset, std::span<std::byte> dst) const {
  while (!dst.empty()) {
    const ssize_t got = pread(fd_, dst.data(), dst.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fault("{}: reading at byte {}: {}", path_, offset, std::strerror(errno));
    if (got == 0) {
      return fault("{}: the file became shorter during the run: expected {} bytes, found {}", path_,
                   size_, offset);
    }
    dst = dst.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
