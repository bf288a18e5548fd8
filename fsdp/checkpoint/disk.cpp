#include "fsdp/checkpoint/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

namespace fs = std::filesystem;

Status failed(const std::string& path, const char* what) {
  return fault("{}: {}: {}", path, what, std::strerror(errno));
}

mode_t file_mode(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode : 0;
}

}  // namespace

Result<OpenFile> create_file(const std::string& path) {
  OpenFile file{path,
                UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666))};
  if (file.fd.get() < 0) return failed(path, "cannot be created");
  return file;
}

Status resize_file(const OpenFile& file, int64_t bytes) {
  if (ftruncate(file.fd.get(), bytes) == 0) return ok_status();
  return failed(file.path, "cannot get its size");
}

Status start_writeback(const OpenFile& file, int64_t offset, int64_t bytes) {
  if (sync_file_range(file.fd.get(), offset, bytes, SYNC_FILE_RANGE_WRITE) == 0) return ok_status();
  // Not every file system supports it; the fsync at the end is enough.
  if (errno == ESPIPE || errno == EINVAL || errno == ENOSYS) return ok_status();
  return failed(file.path, "cannot be brought to disk");
}

Status make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return ok_status();
  if (errno == EEXIST && is_folder(path)) return ok_status();
  return failed(path, "folder cannot be created");
}

Status make_folders(const std::string& path) {
  if (is_folder(path)) return ok_status();
  const std::string parent = parent_folder(path);
  if (parent != path && !is_folder(parent)) OFSDP_RETURN_IF_ERROR(make_folders(parent));
  return make_folder(path);
}

Status take_name(const std::string& from, const std::string& to, const std::string& aside) {
  const bool done =
      is_folder(to) ? exchange_names(from, to, aside) : rename(from.c_str(), to.c_str()) == 0;
  if (done) return ok_status();
  return fault("{}: cannot be renamed from {}: {}", to, from, std::strerror(errno));
}

Status write_whole_file(const std::string& path, const std::string& bytes) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, create_file(path));
  OFSDP_RETURN_IF_ERROR(resize_file(file, 0));
  OFSDP_RETURN_IF_ERROR(write_exactly(file, 0, std::as_bytes(std::span(bytes))));
  return sync_file(file);
}

Result<std::string> read_whole_file(const std::string& path, int64_t max_bytes) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_reading(path));
  OFSDP_REJECT_IF(file.bytes > max_bytes, "{}: expected at most {} bytes, found {}", path,
                  max_bytes, file.bytes);
  std::string bytes(static_cast<size_t>(file.bytes), '\0');
  OFSDP_RETURN_IF_ERROR(read_exactly(file, 0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Status remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return ok_status();
  return fault("{}: cannot be removed: {}", path, error.message());
}

Result<std::vector<std::string>> list_folder(const std::string& folder) {
  std::vector<std::string> names;
  if (is_absent(folder)) return names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  OFSDP_FAULT_IF(error, "{}: cannot be listed: {}", folder, error.message());
  std::ranges::sort(names);
  return names;
}

bool is_folder(const std::string& path) { return S_ISDIR(file_mode(path)); }
bool is_file(const std::string& path) { return S_ISREG(file_mode(path)); }

bool is_absent(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(path, error);
  return error ? path : absolute.string();
}

Result<LockedFile> LockedFile::lock(const std::string& path) {
  constexpr auto kPatience = std::chrono::seconds(3);
  constexpr auto kLook = std::chrono::milliseconds(20);
  LockedFile locked;
  OFSDP_ASSIGN_OR_RETURN(locked.file_, create_file(path));
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (flock(locked.file_.fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return failed(path, "cannot be locked");
    OFSDP_REJECT_IF(std::chrono::steady_clock::now() > end,
                    "{}: another run writes into this folder and holds its lock", path);
    std::this_thread::sleep_for(kLook);
  }
  return locked;
}

}  // namespace ofsdp::fsdp
