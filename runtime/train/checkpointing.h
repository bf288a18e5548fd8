// Checkpointing decides when a run saves, and tracks whether all ranks have written a save.
//
// At a save point every rank copies its share, and the Saver writes the copy while training goes
// on. With --checkpoint-sync and for the last save, training waits and nothing is copied. A save
// needs no collective: every update's last exchange carries how many saves each rank has
// written, and when all have written the present one, rank 0 makes it a checkpoint. If a save point
// comes while a save is in progress, it waits.
//
// Save points are --checkpoint-interval, the end of the run, a better evaluation (--keep-best), and
// a signal on any rank that stops the run (`stop`).
//
// Borrows plan, setup, state and communicator; owns the store (rank 0). `after_update` and `finish`
// are collective. Errors: kFault if this rank cannot write or a weight is NaN (check_weights),
// kPeer from other ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/checkpoint/shard_file.h"
#include "fsdp/comm/communicator.h"
#include "importer/write/model_copy.h"
#include "kernels/base/host_tasks.h"
#include "runtime/compile/saved_slices.h"
#include "runtime/data/sampler.h"
#include "runtime/log/metrics.h"
#include "runtime/options.h"
#include "runtime/train/rank_state.h"

namespace ofsdp::runtime {

// Saver writes checkpoints in the background while training goes on. Jobs run in order. REQUIRES:
// the data of a job do not change until the job is done.
//
// `write` writes this rank's files and part of the manifest for one save. `commit` (rank 0,
// after all ranks have written) makes the save a checkpoint and removes old ones.
//
// After the first job that fails no other starts, and `failure` returns the reason, also if writing
// could not start at all. All members must be called by the thread that made it. The destructor
// stops at the next block of a file and drops the rest. Errors: kFault with file or folder.
struct WriteJob {
  std::string folder;
  int rank = 0;
  std::vector<PlannedFile> files = {};
  std::string configuration = {};  // rank 0: config.yaml
  std::span<float> room = {};      // buffer to decode states in fewer than 32 bits; may be empty
  // Writes the save's other bytes to disk; may be empty.
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

  void stop();  // returns after the job in progress has ended; may be called again
  void write(WriteJob job);
  void commit(CommitJob job);
  // How many jobs are done.
  int64_t written() const { return written_; }
  int64_t committed() const { return committed_; }
  std::chrono::steady_clock::time_point last_commit() const { return last_commit_; }
  Status failure();
  // Blocks until all jobs are done.
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
  BackgroundTask writing_;  // last: it uses the members above
};

// SaveContents makes the job that writes this rank's part of a save: the shard files and, in a full
// checkpoint, the rank's elements of the model file (rank 0 also writes everything that does not
// change).
//
// `sources` returns the addresses of all slices after `step`: in the training state, which
// must then not change until the job is done, or in the staged copy, which `sources` makes. One
// save at a time.
//
// A job points into this object and runs on the Saver's thread. Errors: kFault from `make` if the
// model file can no longer be read, from `sources` if a weight is NaN.
class SaveContents {
 public:
  static Result<std::unique_ptr<SaveContents>> make(CheckpointType type, RankState& state);

  Result<std::vector<SliceSource>> sources(bool staged, int64_t step);
  WriteJob job(const std::string& folder, const std::string& save,
               const std::vector<SliceSource>& sources) const;

 private:
  SaveContents(CheckpointType type, RankState& state)
      : state_(state),
        slices_(saved_slices(state.plan(), state.setup().graph, state.rank(), type)),
        decoding_(decoding_bytes(slices_)) {}

  Status plan_copy();
  int initializer_of(const SavedSlice& slice) const;
  const float* live(const SavedSlice& slice);
  StoredState live_state(const SavedSlice& slice) const;
  Result<std::vector<SliceSource>> staged(int64_t step);
  void add_model_files(const std::vector<SliceSource>& sources, WriteJob& job) const;

  RankState& state_;
  const std::vector<SavedSlice> slices_;
  // bytes at the start of the staging in which the writer decodes; the copy follows
  const size_t decoding_;
  std::optional<ModelCopy> copy_;  // only for a full checkpoint
};

class Checkpointing {
 public:
  // Collective. `store`: rank 0's, else null.
  static Result<std::unique_ptr<Checkpointing>> make(const RunSettings& settings, RankState& state,
                                                     Communicator& communicator,
                                                     CheckpointStore* store);

  // Removes a failed save's files.
  ~Checkpointing();

  // This rank's number for the last exchange in an update; `heard` takes the least of all ranks.
  double written() const { return static_cast<double>(saver_.written()); }
  void heard(double least_written);
  // The run ends after this update, on all ranks.
  void stop() { stopping_ = true; }
  // Returns true if after_update may save whatever the evaluation gives.
  bool may_save(int64_t step) const { return stopping_ || due(step); }

  // Saves if a save is due. `trained_ms`: the time of all updates so far, the same on all ranks.
  // Saves keep this until the next call: how far --early-stop is from its end.
  void set_early_stop(int64_t not_better, const std::optional<double>& best) {
    early_stop_.assign(1, static_cast<double>(not_better));
    if (best) early_stop_.push_back(*best);
  }
  Status after_update(int64_t step, const std::optional<EvalRow>& evaluation, bool last,
                      double trained_ms);
  // Blocks until every save is a checkpoint.
  Status finish();
  // Rank 0: returns a line about a save that has become a checkpoint, once for each; else empty.
  std::string newly_committed();

 private:
  using Clock = std::chrono::steady_clock;

  Checkpointing(const RunSettings& settings, RankState& state, Communicator& communicator,
                CheckpointStore* store);

  bool due(int64_t step) const;
  bool rested(double trained_ms) const;
  Result<bool> best_so_far(const std::optional<EvalRow>& evaluation);
  Status save(int64_t step, const std::optional<EvalRow>& evaluation, bool wait);
  Status wait_for_all();
  void commit_present();

  const RunSettings& settings_;
  const CheckpointOptions& options_;
  const Sampler& sampler_;
  RankState& state_;
  Communicator& communicator_;
  CheckpointStore* store_;
  std::unique_ptr<SaveContents> contents_;
  std::vector<double> early_stop_;  // Manifest::early_stop
  Manifest manifest_;               // the present save's
  std::string token_;               // the same on all ranks
  std::string folder_;
  int64_t saves_ = 0;        // begun
  int64_t handed_over_ = 0;  // given to the store by rank 0, or known to be
  int64_t reported_ = 0;
  struct Report {
    std::string folder;
    Clock::time_point began;
    double copy_ms = 0, wait_ms = 0;
  };
  Report present_;
  std::deque<Report> committing_;  // given to the store and not yet reported
  int64_t last_step_ = -1;
  double saved_at_ms_ = 0;  // `trained_ms` of the last save
  bool stopping_ = false;
  Saver saver_;  // last: it uses the members above
};

// Resume finds the checkpoint from which a run goes on. `--resume latest` takes the newest one of
// the folder that is undamaged, a named folder that one or none.
//
// Before planning and loading, all ranks together check every byte once, each rank a share, and
// agree on the result. The first rank that found damage says so on stderr; a damaged checkpoint is
// kept as bad-step-N.
//
// The caller owns the reader, rank 0 the store. Collective. Errors: kInput with folder, expected
// and found.

// Settings that changed since the checkpoint: compares the effective configurations, which each
// checkpoint keeps next to the manifest. Lines that are not "key: value" are skipped.

// The effective configuration in a checkpoint's folder.
inline constexpr const char* kSavedConfiguration = "config.yaml";

// Returns true if this key's value changes the trained weights, whatever the ranks and the
// device. False for data, --seed, --shuffle and --drop-last, which the manifest holds, and for the
// length of the run (--steps, --epochs).
bool changes_weights(std::string_view key);

// Returns "lr 5.0 (was 0.05), ..." for keys in both configurations; empty if none differs. Includes
// the length of the run if the schedule depends on it.
std::string changed_settings_line(const std::string& saved, const std::string& present);

// Returns the file of `--resume FILE.onnx`, which must have the same graph as the model; else
// empty.
Result<std::string> weights_to_start_from(const Options& options);

// The value of --resume for the newest checkpoint of --checkpoint-dir.
inline constexpr const char* kLatest = "latest";

// Returns null if the run starts from the beginning.
Result<std::unique_ptr<CheckpointReader>> find_checkpoint(const Options& options,
                                                          Communicator& communicator,
                                                          CheckpointStore* store);

// Warns on stderr about settings that differ from the checkpoint. `configuration`: the effective
// one, on rank 0; if empty, nothing is compared.
void warn_of_other_settings(const CheckpointReader& checkpoint, const std::string& configuration);

ResumePoint resume_point(const CheckpointReader* checkpoint);

// The manifest of checkpoints, the check that a run may resume one, and loading. Each rank loads
// the elements that it holds, whichever rank saved them. check_resumable returns kInput with the
// difference.

// Returns the part of the manifest that all saves in a run share.
Manifest describe_run(const Options& options, const CompiledRun& plan, const ModelSetup& setup);

// Returns an error unless the checkpoint has the same graph, teacher, trained set and optimizer;
// for an evaluation the same graph is enough.
Status check_resumable(const Manifest& manifest, const CompiledRun& plan, const ModelSetup& setup);

// Names the edits that explain a refusal of check_resumable (setup/checkpoint_values.h).
Status with_edits_of(const Manifest& manifest, const Options& options, Status refusal);

// No checkpoint has an adapter that is frozen or that no loss reaches. Returns kInput if this run
// gives it other values than the saved run did.
Status check_untrained_adapters(const Manifest& manifest, const Options& options,
                                const ModelSetup& setup);

Status load_checkpoint(CheckpointReader& reader, const RankState& state);

}  // namespace ofsdp::runtime
