// for_each_task: work on the host that falls into independent parts, while a run is prepared and no
// kernel runs: reading weights, checking a checkpoint.
//
// body(i) -> Status for 0 <= i < count, on at most `threads` threads, in no order. Every part is
// called, also after one has failed. Parts must not start kernels, which have another pool.
//
// The caller's thread takes part. Returns the error of the smallest i that failed, so that it is
// the same every time.
#pragma once

#include <algorithm>
#include <mutex>

#include "kernels/base/tbb_arena.h"

namespace ofsdp::base {

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

}  // namespace ofsdp::base
