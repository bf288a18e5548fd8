#include "runtime/log/log_target.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ofsdp::runtime {

Status check_log_target(const char* flag, const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return ok_status();  // opening says what is wrong
  const mode_t mode = found.st_mode;
  const char* kind = S_ISLNK(mode) ? "a link" : S_ISDIR(mode) ? "a folder" : "a device or pipe";
  if (S_ISREG(mode)) return ok_status();
  return input_error("{} {}: expected a new or a regular file, found {}", flag, path, kind);
}

Status make_log_part(const char* flag, const std::string& path, const std::string& part) {
  unlink(part.c_str());
  const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const UniqueFd fd(::open(part.c_str(), how, 0666));
  if (fd.valid()) return ok_status();
  return input_error("{} {}: cannot be created: {}", flag, path, std::strerror(errno));
}

}  // namespace ofsdp::runtime
