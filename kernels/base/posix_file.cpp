#include "kernels/base/posix_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace ofsdp::base {

namespace {

constexpr int64_t kCopyBytes = int64_t{1} << 20;

const char* error_text() { return std::strerror(errno); }

Status cannot_open(const std::string& path) {
  if (errno == ENOENT) return input_error("{}: no such file", path);
  const bool users = errno == EACCES || errno == EPERM || errno == ENOTDIR || errno == ELOOP ||
                     errno == ENAMETOOLONG || errno == ENXIO;
  return Status(users ? ErrorKind::kInput : ErrorKind::kFault,
                format_text("{}: cannot be read: {}", path, error_text()));
}

Status copy_through_memory(const OpenFile& src, int64_t src_offset, const OpenFile& dst,
                           int64_t dst_offset, int64_t bytes) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(bytes, kCopyBytes)));
  for (int64_t done = 0; done < bytes;) {
    const auto part = std::span(buffer).first(
        static_cast<size_t>(std::min<int64_t>(bytes - done, static_cast<int64_t>(buffer.size()))));
    OFSDP_RETURN_IF_ERROR(read_exactly(src, src_offset + done, part));
    OFSDP_RETURN_IF_ERROR(write_exactly(dst, dst_offset + done, part));
    done += static_cast<int64_t>(part.size());
  }
  return ok_status();
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Result<OpenFile> open_for_reading(const std::string& path, Symlinks symlinks) {
  // O_NONBLOCK: opening a pipe returns; the pipe is then refused as no regular file.
  const int flags =
      O_RDONLY | O_CLOEXEC | O_NONBLOCK | (symlinks == Symlinks::kRefuse ? O_NOFOLLOW : 0);
  OpenFile file{path, UniqueFd(open(path.c_str(), flags))};
  if (file.fd.get() < 0) return cannot_open(path);
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0) return cannot_open(path);
  if (S_ISDIR(info.st_mode)) return input_error("{}: expected a file, found a folder", path);
  if (!S_ISREG(info.st_mode)) {
    return input_error("{}: expected a regular file, found a device, pipe or socket", path);
  }
  file.bytes = info.st_size;
  file.device = info.st_dev;
  file.inode = info.st_ino;
  return file;
}

Result<OpenFile> open_for_writing(const std::string& path) {
  OpenFile file{path, UniqueFd(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW))};
  if (file.fd.get() < 0) return fault("{}: cannot be opened for writing: {}", path, error_text());
  return file;
}

bool is_same_file(const std::string& path, const OpenFile& file) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && info.st_dev == file.device && info.st_ino == file.inode;
}

Status read_exactly(const OpenFile& file, int64_t offset, std::span<std::byte> dst) {
  for (size_t done = 0; done < dst.size();) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t got = pread(file.fd.get(), dst.data() + done, dst.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fault("{}: cannot be read at byte {}: {}", file.path, at, error_text());
    if (got == 0) {
      return fault("{}: was cut short while in use: expected {} bytes at byte {}, found {}",
                   file.path, dst.size(), offset, done);
    }
    done += static_cast<size_t>(got);
  }
  return ok_status();
}

Status write_exactly(const OpenFile& file, int64_t offset, std::span<const std::byte> src) {
  for (size_t done = 0; done < src.size();) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t put = pwrite(file.fd.get(), src.data() + done, src.size() - done, at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      return fault("{}: cannot be written: expected {} bytes at byte {}, wrote {}: {}", file.path,
                   src.size(), offset, done, error_text());
    }
    done += static_cast<size_t>(put);
  }
  return ok_status();
}

Status copy_bytes(const OpenFile& src, int64_t src_offset, const OpenFile& dst, int64_t dst_offset,
                  int64_t bytes) {
  while (bytes > 0) {
    loff_t from = src_offset;
    loff_t to = dst_offset;
    const ssize_t copied =
        copy_file_range(src.fd.get(), &from, dst.fd.get(), &to,
                        static_cast<size_t>(std::min(bytes, kCopyBytes << 10)), 0);
    if (copied < 0 && errno == EINTR) continue;
    // Some pairs of file systems cannot do it, and plain reads and writes give the better message.
    if (copied <= 0) return copy_through_memory(src, src_offset, dst, dst_offset, bytes);
    src_offset += copied;
    dst_offset += copied;
    bytes -= copied;
  }
  return ok_status();
}

bool exchange_names(const std::string& a, const std::string& b, const std::string& aside) {
  if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (aside.empty() || (errno != EINVAL && errno != ENOSYS)) return false;
  return rename(b.c_str(), aside.c_str()) == 0 && rename(a.c_str(), b.c_str()) == 0 &&
         rename(aside.c_str(), a.c_str()) == 0;
}

int memory_file(const std::string& name) {
  constexpr unsigned kNoExec = 0x8;  // MFD_NOEXEC_SEAL, since Linux 6.3
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create(name.c_str(), kFlags | kNoExec);
  return fd >= 0 || errno != EINVAL ? fd : memfd_create(name.c_str(), kFlags);
}

void seal_size(int fd) { fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW); }

Status sync_file(const OpenFile& file) {
  if (fsync(file.fd.get()) == 0) return ok_status();
  return fault("{}: cannot be brought to disk: {}", file.path, error_text());
}

Status sync_folder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: the file system cannot sync folders.
  if (fd.get() >= 0 && (fsync(fd.get()) == 0 || errno == EINVAL)) return ok_status();
  return fault("{}: folder cannot be brought to disk: {}", folder, error_text());
}

std::string parent_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_filename(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string join_path(const std::string& folder, const std::string& name) {
  if (folder == ".") return name;
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

int write_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace ofsdp::base
