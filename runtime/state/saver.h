// Saver: writes checkpoints in the background while training goes on. Jobs run in the order they
// came. REQUIRES: what a job reads stays as it is until the job is done.
//
//   write   this rank's files of one save, and its part of the manifest
//   commit  rank 0: all ranks have written; the save becomes a checkpoint, older ones go
//
// After the first job that fails no other is begun; `failure` then has the reason, as it has why
// writing could not start.
// Ownership: borrows the store. Threads: all members from the one that made it.
// The destructor drops what is left to do, at the next block of a file. Errors: from the waits and
// `failure`: kFault naming file or folder.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/checkpoint/shard_file.h"
#include "kernels/base/background_task.h"

namespace ofsdp::runtime {

struct WriteJob {
  std::string folder;
  int rank = 0;
  std::vector<PlannedFile> files = {};
  std::string configuration = {};  // of rank 0: the bytes of config.yaml
  std::span<float> room = {};      // where states of fewer bits are decoded; or none
  // Other bytes of the save, brought to disk; may be empty.
  std::function<Status(const std::atomic<bool>& cancelled)> more = {};
};

struct CommitJob {
  CheckpointStore* store = nullptr;
  std::string folder;
  Manifest manifest;
};

class Saver {
 public:
  Saver();
  Saver(const Saver&) = delete;
  ~Saver() { stop(); }

  void stop();  // returns when the job in progress has ended; may be called again
  void write(WriteJob job);
  void commit(CommitJob job);
  // How many of each are done.
  int64_t written() const { return written_; }
  int64_t committed() const { return committed_; }
  std::chrono::steady_clock::time_point last_commit() const { return last_commit_; }
  Status failure();
  // Until all that was asked for is done.
  Status wait();

 private:
  using Job = std::function<Status()>;
  void add(Job job);
  void request_run();
  void do_jobs();
  Status write_now(const WriteJob& job);

  std::atomic<int64_t> written_{0}, committed_{0};
  std::atomic<std::chrono::steady_clock::time_point> last_commit_{};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false;
  Status failure_;
  BackgroundTask writing_;  // last
};

}  // namespace ofsdp::runtime
