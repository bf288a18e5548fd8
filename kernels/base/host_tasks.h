// Threads for host work other than kernels: start_thread runs one function, for_each_task
// independent parts, BackgroundTask repeated runs while the requesting thread goes on. These
// threads block all signals, so that signals (Ctrl-C) reach the main thread, which runs the
// training steps. The work must not throw.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/status.h"

namespace ofsdp::base {

// While this object lives, a thread that starts inherits a mask that blocks all signals. The
// destructor restores the calling thread's mask.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Starts a thread that takes no signals; the caller joins it. If the system refuses another thread
// (process limit), returns a fault that names `what`. `name` appears in thread lists, at most 15
// characters.
template <typename Body>
Result<std::thread> start_thread(const char* name, const char* what, Body body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    return fault("{} cannot start: no thread to be had ({})", what, error.code().message());
  }
}

// A few oneTBB threads. `enqueue` schedules task(of) after all other tasks in the arena and returns
// at once. `run` calls body(of, i) for 0 <= i < count, in any order, on the arena's threads and the
// caller's, and returns when all calls have ended.
//
// `of` is passed to the task and must stay alive until the task has run. If the system refuses
// another thread, `enqueue` returns a fault, but oneTBB may still run the task at any later time:
// then `of` must never be freed (~BackgroundTask does so).
//
// Only tbb_arena.cpp includes oneTBB, and is compiled without ThreadSanitizer, which does not see
// the order that oneTBB's atomics give. Callers must order task data by atomics or locks that
// ThreadSanitizer sees.
class TbbArena {
 public:
  // `threads` includes the caller's if `with_caller`.
  TbbArena(int threads, bool with_caller);
  TbbArena(const TbbArena&) = delete;
  ~TbbArena();

  Status enqueue(void (*task)(void*), void* of);
  void run(int64_t count, void (*body)(void* of, int64_t i), void* of);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

// Calls body(i), which returns a Status, for all 0 <= i < count, in any order, on at most `threads`
// threads including the caller's. An error does not stop the other calls; the one with the smallest
// i is returned, so that it is the same in every run. For preparation (reading weights, checking a
// checkpoint).
//
// REQUIRES: no kernel runs, and body starts none: kernels have another pool.
template <typename Body>
Status for_each_task(int threads, int64_t count, Body body) {
  struct Parts {
    explicit Parts(Body& b) : body(b) {}

    static void run(void* of, int64_t i) {
      auto& parts = *static_cast<Parts*>(of);
      { const std::lock_guard lock(parts.mutex); }  // sees the caller's writes
      Status status = parts.body(i);
      const std::lock_guard lock(parts.mutex);
      if (status.ok() || i >= parts.failed) return;
      parts.failed = i;
      parts.failure = std::move(status);
    }

    Body& body;
    std::mutex mutex;
    int64_t failed = INT64_MAX;
    Status failure;
  };
  Parts parts(body);
  const auto most = static_cast<int>(std::min<int64_t>(threads, count));
  if (most <= 1) {
    for (int64_t i = 0; i < count; ++i) Parts::run(&parts, i);
  } else {
    TbbArena(most, true).run(count, &Parts::run, &parts);
  }
  const std::lock_guard lock(parts.mutex);
  return std::move(parts.failure);
}

// Work that runs while the requesting thread does other things. `request` adds a run; `stop` drops
// runs that have not begun and waits for the current one. Runs of one task never overlap, and each
// sees all writes made before its request; different tasks overlap.
//
// REQUIRES: one thread calls `request` and `stop`. If the system refuses a thread, `request`
// returns a fault that names the work, and so does every later request. The destructor calls
// `stop`.
class BackgroundTask {
 public:
  // `thread`: thread name, at most 15 characters. `what` names the work in messages.
  BackgroundTask(const char* thread, std::string what, std::function<void()> work);
  BackgroundTask(const BackgroundTask&) = delete;
  ~BackgroundTask();

  Status request();
  void stop();  // may be called again

 private:
  struct Runs;
  std::string what_;
  std::unique_ptr<Runs> runs_;
};

}  // namespace ofsdp::base
