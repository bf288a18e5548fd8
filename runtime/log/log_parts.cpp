#include "runtime/log/log_parts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>

namespace ofsdp::runtime {

namespace {

// Schedulers signal every process in a job, and the launcher passes signals on, so a rank may hear
// one wish twice.
constexpr int64_t kSameWish = 1'000'000'000;  // nanoseconds

constexpr std::array kStopping{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1};

std::atomic<int64_t> signalled = 0;  // the first signal's time; 0: none
std::atomic<int> signalled_by = 0;   // its number
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void note(int number) {
  int64_t first = 0;
  const bool is_first = signalled.compare_exchange_strong(first, now());
  if (is_first) signalled_by = number;
  if (is_first || now() - first < kSameWish) return;
  if (getpid() == 1) _exit(128 + number);
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered after this handler returns
}

}  // namespace

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
  if (lstat(path.c_str(), &found) != 0) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    if (path.empty() || access(folder.empty() ? "." : folder.c_str(), W_OK) == 0) return {};
    return input_error("{} {}: cannot be created: {}", flag, path, std::strerror(errno));
  }
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

bool is_ignored(int number) {
  struct sigaction present {};
  return sigaction(number, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

bool is_stop_signal(int number) { return std::ranges::find(kStopping, number) != kStopping.end(); }

int stopped_by(int exit_status) {
  const int number = exit_status - stopped_status(0);
  return is_stop_signal(number) ? number : 0;
}

void hold_stop_signals(bool held) {
  sigset_t all;
  sigemptyset(&all);
  for (const int number : kStopping) sigaddset(&all, number);
  sigprocmask(held ? SIG_BLOCK : SIG_UNBLOCK, &all, nullptr);
}

void end_on_signals() {
  if (getpid() != 1) return;
  for (const int number : kStopping) {
    if (!is_ignored(number)) std::signal(number, [](int n) { _exit(128 + n); });
  }
}

StopSignal::StopSignal() {
  signalled = 0;
  signalled_by = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kStopping.size(); ++i) {
    const int number = kStopping[i];
    const bool leave = number != SIGTERM && number != SIGINT && is_ignored(number);
    sigaction(number, leave ? nullptr : &action, &before_[i]);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kStopping.size(); ++i) sigaction(kStopping[i], &before_[i], nullptr);
}

int StopSignal::number() const { return signalled_by; }

}  // namespace ofsdp::runtime
