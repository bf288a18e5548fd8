#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "kernels/base/host_tasks.h"

namespace ofsdp::base {
namespace {

namespace tbb = oneapi::tbb;

// By default oneTBB has a thread less than the process has cores: on one core the checkpoint writer
// would delay the data reader. Arenas limit how many tasks run at once.
void allow_threads() {
  static const tbb::global_control control(
      tbb::global_control::max_allowed_parallelism,
      size_t{16} + std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace

struct TbbArena::Library {
  tbb::task_arena arena;
};

TbbArena::TbbArena(int threads, bool with_caller) {
  allow_threads();
  library_ = std::make_unique<Library>(tbb::task_arena(threads, with_caller ? 1 : 0));
}

TbbArena::~TbbArena() = default;

Status TbbArena::enqueue(void (*task)(void*), void* of) {
  const AllSignalsBlocked blocked;  // a thread that starts here inherits it
  try {
    library_->arena.enqueue([task, of] { task(of); });
    return ok_status();
  } catch (const std::exception& error) {
    return fault("no thread to be had ({})", error.what());
  }
}

void TbbArena::run(int64_t count, void (*body)(void* of, int64_t i), void* of) {
  const AllSignalsBlocked blocked;
  library_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, count, 1),
        [&](const tbb::blocked_range<int64_t>& part) {
          for (int64_t i = part.begin(); i < part.end(); ++i) body(of, i);
        },
        tbb::simple_partitioner());
  });
}

}  // namespace ofsdp::base
