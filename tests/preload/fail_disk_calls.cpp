// A library for LD_PRELOAD: lets one call that changes a folder fail, to test a save after a
// failure.
//
//   FAIL_FOLDER  only calls below this folder count
//   FAIL_RANK    only in this rank
//   FAIL_CALL    which call, from 1; 0: none
//   FAIL_HOW     once   only that call, with EIO
//                on     that call and all after it, as on a full disk: calls that write or make
//                       something fail with ENOSPC, the rest with EROFS
//                short  a write writes half of its bytes
//   FAIL_READS   an errno: reads of files with FAIL_READS_OF in the path fail with it
//   FAIL_ABSENT  1: lstat sees nothing there
//   FAIL_FLAGS   1: renameat2 knows no flags, as on NFS
//   FAIL_COUNT   a file that gets the number of calls when the process ends
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace {

enum class Verdict { kGo, kFail, kShort };
enum class Kind { kWrite, kOther };

std::atomic<long> calls{0};

bool is_ours(const char* path) {
  const char* folder = getenv("FAIL_FOLDER");
  return folder != nullptr && path != nullptr && strncmp(path, folder, strlen(folder)) == 0;
}

std::string path_of(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path);
  return std::string(path, length < 0 ? 0 : static_cast<size_t>(length));
}

bool is_ours(int fd) { return is_ours(path_of(fd).c_str()); }

bool is_of_this_rank() {
  const char* rank = getenv("RANK");
  const char* wanted = getenv("FAIL_RANK");
  return wanted == nullptr || rank == nullptr || strcmp(rank, wanted) == 0;
}

Verdict judge(Kind kind) {
  if (!is_of_this_rank()) return Verdict::kGo;
  const long call = ++calls;
  const char* text = getenv("FAIL_CALL");
  const long failing = text == nullptr ? 0 : atol(text);
  const std::string how = getenv("FAIL_HOW") == nullptr ? "once" : getenv("FAIL_HOW");
  if (failing == 0 || call < failing || (call > failing && how != "on")) return Verdict::kGo;
  if (how == "short") return kind == Kind::kWrite ? Verdict::kShort : Verdict::kGo;
  errno = how == "once" ? EIO : kind == Kind::kWrite ? ENOSPC : EROFS;
  return Verdict::kFail;
}

template <typename F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

__attribute__((destructor)) void report() {
  const char* path = getenv("FAIL_COUNT");
  const char* rank = getenv("RANK");
  if (path == nullptr || rank == nullptr) return;
  const std::string line = std::string(rank) + " " + std::to_string(calls.load()) + "\n";
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (write(fd, line.data(), line.size()) < 0) abort();
  close(fd);
}

// Whether reading this file fails; then sets errno.
bool is_unreadable(int fd) {
  const char* number = getenv("FAIL_READS");
  const char* part = getenv("FAIL_READS_OF");
  if (number == nullptr || !is_of_this_rank()) return false;
  const std::string path = path_of(fd);
  if (!is_ours(path.c_str()) || (part != nullptr && path.find(part) == std::string::npos))
    return false;
  errno = atoi(number);
  return true;
}

bool refused(const char* path) { return is_ours(path) && judge(Kind::kOther) == Verdict::kFail; }
bool refused(int fd) { return is_ours(fd) && judge(Kind::kOther) == Verdict::kFail; }

mode_t mode_behind(int flags, va_list list) {
  return (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_behind(flags, list);
  va_end(list);
  if ((flags & O_CREAT) != 0 && refused(path)) return -1;
  return real<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_behind(flags, list);
  va_end(list);
  if ((flags & O_CREAT) != 0 && refused(path)) return -1;
  return real<int (*)(const char*, int, ...)>("open64")(path, flags, mode);
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  if (is_ours(fd)) {
    const Verdict verdict = judge(Kind::kWrite);
    if (verdict == Verdict::kFail) return -1;
    if (verdict == Verdict::kShort && count > 1) count /= 2;
  }
  return real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  return pwrite(fd, bytes, count, offset);
}

ssize_t copy_file_range(int from, off64_t* at, int to, off64_t* target, size_t count,
                        unsigned flags) {
  if (is_ours(to)) {
    const Verdict verdict = judge(Kind::kWrite);
    if (verdict == Verdict::kFail) return -1;
    if (verdict == Verdict::kShort && count > 1) count /= 2;
  }
  using Call = ssize_t (*)(int, off64_t*, int, off64_t*, size_t, unsigned);
  return real<Call>("copy_file_range")(from, at, to, target, count, flags);
}

ssize_t pread(int fd, void* bytes, size_t count, off_t offset) {
  if (is_unreadable(fd)) return -1;
  return real<ssize_t (*)(int, void*, size_t, off_t)>("pread")(fd, bytes, count, offset);
}

ssize_t pread64(int fd, void* bytes, size_t count, off64_t offset) {
  return pread(fd, bytes, count, offset);
}

int lstat(const char* path, struct stat* info) {
  if (getenv("FAIL_ABSENT") != nullptr && is_of_this_rank() && is_ours(path)) {
    errno = ENOENT;
    return -1;
  }
  return real<int (*)(const char*, struct stat*)>("lstat")(path, info);
}

int fsync(int fd) { return refused(fd) ? -1 : real<int (*)(int)>("fsync")(fd); }

int ftruncate(int fd, off_t bytes) {
  return refused(fd) ? -1 : real<int (*)(int, off_t)>("ftruncate")(fd, bytes);
}

int mkdir(const char* path, mode_t mode) {
  return refused(path) ? -1 : real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

int rename(const char* from, const char* to) {
  return refused(to) ? -1 : real<int (*)(const char*, const char*)>("rename")(from, to);
}

int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
  using Call = int (*)(int, const char*, int, const char*, unsigned);
  if (flags != 0 && getenv("FAIL_FLAGS") != nullptr) {
    errno = EINVAL;
    return -1;
  }
  return refused(to) ? -1 : real<Call>("renameat2")(a, from, b, to, flags);
}

int symlink(const char* target, const char* path) {
  return refused(path) ? -1 : real<int (*)(const char*, const char*)>("symlink")(target, path);
}

int unlinkat(int folder, const char* name, int flags) {
  const bool below = folder == AT_FDCWD ? is_ours(name) : is_ours(folder);
  if (below && judge(Kind::kOther) == Verdict::kFail) return -1;
  return real<int (*)(int, const char*, int)>("unlinkat")(folder, name, flags);
}

int remove(const char* path) {
  return refused(path) ? -1 : real<int (*)(const char*)>("remove")(path);
}

}  // extern "C"
