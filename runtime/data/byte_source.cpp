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
  source.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!source.fd_.valid() || fstat(source.fd_.get(), &info) != 0) {
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

Status ByteSource::read(uint64_t offset, std::span<std::byte> dst) const {
  if (fd_.valid()) return read_file(offset, dst);
  if (dst.empty()) return ok_status();
  OFSDP_CHECK(offset + dst.size() <= size_, "{}: {} + {} of {} bytes", path_, offset, dst.size(),
              size_);
  std::memcpy(dst.data(), memory_ + offset, dst.size());
  return ok_status();
}

Status ByteSource::read_file(uint64_t offset, std::span<std::byte> dst) const {
  while (!dst.empty()) {
    const ssize_t got = pread(fd_.get(), dst.data(), dst.size(), static_cast<off_t>(offset));
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
