#include "runtime/log/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

namespace ofsdp::runtime {
namespace {

// Schedulers signal every process of a job, and the launcher passes signals on, so a rank may hear
// one wish twice.
constexpr int64_t kSameWish = 1'000'000'000;  // nanoseconds

constexpr std::array kStopping{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1};

std::atomic<int64_t> signalled = 0;  // time of the signal; 0: none
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void note(int number) {
  int64_t first = 0;
  if (signalled.compare_exchange_strong(first, now()) || now() - first < kSameWish) return;
  if (getpid() == 1) _exit(128 + number);
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered after this handler returns
}

}  // namespace

bool is_ignored(int number) {
  struct sigaction present {};
  return sigaction(number, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

void end_on_signals() {
  if (getpid() != 1) return;
  for (const int number : kStopping) {
    if (!is_ignored(number)) std::signal(number, [](int n) { _exit(128 + n); });
  }
}

StopSignal::StopSignal() {
  signalled = 0;
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

bool StopSignal::heard() const { return signalled != 0; }

}  // namespace ofsdp::runtime
