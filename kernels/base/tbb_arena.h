// TbbArena: a few threads of oneTBB, for work on the host that is no kernel. What knows oneTBB is
// tbb_arena.cpp alone, which is compiled without ThreadSanitizer: that does not see what the
// library's own atomics order. Who hands data to a task orders it by atomics of their own.
//
// A task is a function and a pointer that it gets. `enqueue` starts one after all others of the
// arena and does not wait; `run` calls body(of, i) for 0 <= i < count on all threads of the arena
// and the caller's, in no order, and returns when all have ended.
//
// Ownership: borrows what tasks point to. Memory: the library keeps and uses again what it needs
// for a task. Threads: any; those of oneTBB take no signals. Errors: kFault of `enqueue`, when the
// system has no room for another thread; the task may still be called later.
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
