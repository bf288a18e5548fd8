// TbbArena: a few threads of oneTBB, for work on the host other than kernels; they take no signals.
// Only tbb_arena.cpp includes oneTBB. It is compiled without ThreadSanitizer, which does not see
// the order that the library's atomics give: callers must order the data of a task by atomics of
// their own.
//
// A task is a function and a pointer that it gets. `enqueue` starts one after all others of the
// arena and does not wait; `run` calls body(of, i) for 0 <= i < count on all threads of the arena
// and the caller's, in no order, and returns when all have ended.
//
// Borrows the pointers of tasks. The library keeps and reuses the memory of a task. If the system
// has no room for another thread, `enqueue` returns a fault; the task may still be called later.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/status.h"

namespace ofsdp::base {

class TbbArena {
 public:
  // `threads`: of oneTBB; in `run` one of them is the caller's.
  TbbArena(int threads, bool with_caller);
  TbbArena(const TbbArena&) = delete;
  ~TbbArena();

  Status enqueue(void (*task)(void*), void* of);
  void run(int64_t count, void (*body)(void* of, int64_t i), void* of);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace ofsdp::base
