#include "runtime/log/log_parts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace ofsdp::runtime {

void StepTimes::add(double step_ms) {
  const int64_t index = count_++;
  if (index < kWarmup) {
    first_[index] = step_ms;
    return;
  }
  if (kept_.size() == most_kept_) {
    for (size_t i = 0; i < most_kept_ / 2; ++i) kept_[i] = kept_[2 * i];
    kept_.resize(most_kept_ / 2);
    stride_ *= 2;
  }
  if ((index - kWarmup) % stride_ == 0) kept_.push_back(static_cast<float>(step_ms));
}

double StepTimes::median() const {
  std::vector<double> times(kept_.begin(), kept_.end());
  if (count_ <= 2 * kWarmup) times.insert(times.end(), first_, first_ + std::min(count_, kWarmup));
  if (times.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(times.begin(), times.end());
  const size_t middle = times.size() / 2;
  return times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
}

Status check_log_target(const char* flag, const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return ok_status();  // open() reports the error
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
