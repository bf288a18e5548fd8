#include "runtime/log/stop_signal.h"

#include <atomic>
#include <cstdint>
#include <ctime>

namespace ofsdp::runtime {
namespace {

// Schedulers tell every process of a job, and the launcher passes on what it hears: one wish, that
// a rank hears twice.
constexpr int64_t kSameWish = 1'000'000'000;  // nanoseconds

std::atomic<int64_t> signalled = 0;  // when; 0: not
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void note(int number) {
  int64_t first = 0;
  if (signalled.compare_exchange_strong(first, now()) || now() - first < kSameWish) return;
  std::signal(number, SIG_DFL);
  std::raise(number);  // comes when this handler has returned
}

}  // namespace

StopSignal::StopSignal() {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &before_term_);
  sigaction(SIGINT, &action, &before_interrupt_);
}

StopSignal::~StopSignal() {
  sigaction(SIGTERM, &before_term_, nullptr);
  sigaction(SIGINT, &before_interrupt_, nullptr);
}

bool StopSignal::heard() const { return signalled != 0; }

}  // namespace ofsdp::runtime
