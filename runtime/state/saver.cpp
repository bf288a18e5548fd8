#include "runtime/state/saver.h"

#include "fsdp/checkpoint/shard_file.h"
#include "runtime/state/settings_changes.h"

namespace ofsdp::runtime {

Saver::Saver() : writing_("ofsdp-save", "the writer of checkpoints", [this] { do_jobs(); }) {
  request_run();  // of nothing yet: whether it can start
}

void Saver::stop() {
  cancelled_ = true;
  writing_.stop();
}

void Saver::request_run() {
  Status requested = writing_.request();
  if (requested.ok()) return;
  const std::lock_guard lock(mutex_);
  failure_ = std::move(requested);
}

void Saver::add(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  request_run();
}

void Saver::write(WriteJob job) {
  add([this, job = std::move(job)] {
    OFSDP_RETURN_IF_ERROR(write_now(job));
    ++written_;
    return ok_status();
  });
}

void Saver::commit(CommitJob job) {
  add([this, job = std::move(job)] {
    OFSDP_RETURN_IF_ERROR(job.store->commit(job.folder, job.manifest));
    last_commit_ = std::chrono::steady_clock::now();
    ++committed_;
    return ok_status();
  });
}

Status Saver::write_now(const WriteJob& job) {
  OFSDP_RETURN_IF_ERROR(make_folder(job.folder));
  std::vector<CheckpointFile> files;
  for (const PlannedFile& planned : job.files) {
    OFSDP_ASSIGN_OR_RETURN(CheckpointFile file,
                           write_planned_file(job.folder, planned, cancelled_, job.room));
    files.push_back(std::move(file));
  }
  if (!job.configuration.empty()) {
    OFSDP_RETURN_IF_ERROR(
        write_whole_file(join_path(job.folder, kSavedConfiguration), job.configuration));
  }
  if (job.more) OFSDP_RETURN_IF_ERROR(job.more(cancelled_));
  return write_part(job.folder, job.rank, files);
}

void Saver::do_jobs() {
  std::unique_lock lock(mutex_);
  while (!cancelled_ && !jobs_.empty() && failure_.ok()) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    Status status = job();
    lock.lock();
    busy_ = false;
    if (!status.ok()) failure_ = std::move(status);
    changed_.notify_all();
  }
}

// A copy, so that asking again gives the same error.
Status Saver::failure() {
  std::lock_guard lock(mutex_);
  return failure_.ok() ? Status{} : Status(failure_.kind(), failure_.message());
}

Status Saver::wait() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !failure_.ok() || (jobs_.empty() && !busy_); });
  }
  return failure();
}

}  // namespace ofsdp::runtime
