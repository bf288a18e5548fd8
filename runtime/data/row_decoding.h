// RowDecoding: the threads that decode rows, and their scratch memory.
//
// `run` calls decode(i, scratch) for 0 <= i < count, each call on one of the threads with scratch
// memory of its own. All calls end before it returns the error with the smallest i, if any.
//
// Owns the memory. One thread at a time may call `run`. Does not allocate.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "kernels/base/host_tasks.h"
#include "kernels/core/memory.h"

namespace ofsdp::runtime {

class RowDecoding {
 public:
  // `counted`: bytes that libraries allocate besides, for each thread.
  static Result<std::unique_ptr<RowDecoding>> make(int threads, size_t scratch, size_t counted,
                                                   MemoryLedger& ledger);
  RowDecoding(const RowDecoding&) = delete;
  ~RowDecoding() { ledger_.remove(counted_); }

  size_t bytes() const { return memory_.bytes() + counted_; }

  template <typename Decode>
  Status run(int64_t count, Decode decode) {
    Rows rows{.count = count,
              .decode =
                  [](void* of, int64_t i, std::span<std::byte> scratch) {
                    return (*static_cast<Decode*>(of))(i, scratch);
                  },
              .of = &decode};
    return run_rows(rows);
  }

 private:
  // The rows of one call.
  struct Rows {
    int64_t count;
    Status (*decode)(void* of, int64_t i, std::span<std::byte> scratch);
    void* of;
    std::atomic<int64_t> next = 0;
    int64_t failed = INT64_MAX;
    Status failure = {};
  };

  Status run_rows(Rows& rows);
  static void run_thread(void* of, int64_t thread);
  RowDecoding(int threads, size_t scratch, size_t counted, Region memory, MemoryLedger& ledger);
  std::span<std::byte> scratch(int64_t thread) const {
    return {memory_.data() + static_cast<size_t>(thread) * scratch_, scratch_};
  }

  const int threads_;
  const size_t scratch_, counted_;
  const Region memory_;
  MemoryLedger& ledger_;
  std::mutex mutex_;  // orders writes of the caller and the threads
  Rows* rows_ = nullptr;
  TbbArena arena_;
};

}  // namespace ofsdp::runtime
