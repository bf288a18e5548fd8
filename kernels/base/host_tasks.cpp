#include "kernels/base/host_tasks.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace ofsdp::base {

struct BackgroundTask::Runs {
  Runs(const char* t, std::function<void()> w) : thread(t), work(std::move(w)) {}

  static void run(void* of) { static_cast<Runs*>(of)->run(); }

  void run() {
    std::unique_lock lock(mutex);
    if (!stopped) {
      lock.unlock();
      name_thread();
      work();
      lock.lock();
    }
    if (--asked_for == 0) idle.notify_all();
  }

  // oneTBB's threads run any task.
  void name_thread() const {
    static thread_local const char* name = nullptr;
    if (name == thread) return;
    name = thread;
    pthread_setname_np(pthread_self(), thread);
  }

  const char* const thread;
  const std::function<void()> work;
  TbbArena arena{1, false};  // one thread: runs never overlap
  std::mutex mutex;
  std::condition_variable idle;
  int asked_for = 0;
  bool stopped = false;
  std::string failure;  // from a request that oneTBB may still run
};

BackgroundTask::BackgroundTask(const char* thread, std::string what, std::function<void()> work)
    : what_(std::move(what)), runs_(new Runs(thread, std::move(work))) {}

BackgroundTask::~BackgroundTask() {
  stop();
  if (!runs_->failure.empty()) (void)runs_.release();
}

Status BackgroundTask::request() {
  {
    std::lock_guard lock(runs_->mutex);
    if (runs_->stopped) return ok_status();
    if (!runs_->failure.empty()) return Status(ErrorKind::kFault, runs_->failure);
    ++runs_->asked_for;
  }
  Status status = runs_->arena.enqueue(&Runs::run, runs_.get());
  if (status.ok()) return status;
  status = std::move(status).with_prefix(what_ + " cannot start");
  std::lock_guard lock(runs_->mutex);
  --runs_->asked_for;
  runs_->failure = status.message();
  return status;
}

void BackgroundTask::stop() {
  std::unique_lock lock(runs_->mutex);
  runs_->stopped = true;
  runs_->idle.wait(lock, [this] { return runs_->asked_for <= 0; });
}

}  // namespace ofsdp::base
