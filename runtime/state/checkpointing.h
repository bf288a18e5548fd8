// Checkpointing: when a run saves, and how its ranks agree that a save is whole.
//
// At a save point every rank copies its share (unless it waits for the disk anyway:
// --checkpoint-sync, the last save) and its Saver writes the copy while training goes on. There is
// no collective in a save: the exchange that ends every update also carries how many saves a rank
// has written, and when all have written the present one, rank 0 makes it a checkpoint. A save
// point that comes while a save is under way waits for it.
//
// Save points: --checkpoint-interval, the end of the run, a better evaluation (--keep-best),
// a signal that stops a run (runtime/log/stop_signal.h) on any rank.
//
// Ownership: borrows plan, setup, state and communicator; owns the store (rank 0). Threads: one;
// `after_update` and `finish` are collective. Errors: kFault of this rank's writer, or of weights
// that are NaN (weight_check.h), kPeer of others.
#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "runtime/log/metrics.h"
#include "runtime/log/stop_signal.h"
#include "runtime/state/checkpoint_state.h"
#include "runtime/state/save_contents.h"
#include "runtime/state/saver.h"

namespace ofsdp::runtime {

class Checkpointing {
 public:
  // Collective. `store` is rank 0's.
  static Result<std::unique_ptr<Checkpointing>> make(const RunSettings& settings, RankState& state,
                                                     Communicator& communicator,
                                                     CheckpointStore* store);

  // Removes the files of a failed save.
  ~Checkpointing();

  // This rank's numbers for the exchange of an update, and those of all ranks.
  double written() const { return static_cast<double>(saver_.written()); }
  double stop_wish() const { return signal_ != nullptr && signal_->heard() ? 1 : 0; }
  void heard(double least_written, double stop_wishes);
  bool stopping() const { return stopping_; }
  // Whether after_update would save, whatever the evaluation says.
  bool may_save(int64_t step) const { return stopping_ || due(step); }

  // Saves when that is due.
  Status after_update(int64_t step, const std::optional<EvalRow>& evaluation, bool last);
  // Every save is a checkpoint.
  Status finish();
  // Rank 0: a line about one that has become a checkpoint, each once; else empty.
  std::string newly_committed();

 private:
  using Clock = std::chrono::steady_clock;

  Checkpointing(const RunSettings& settings, RankState& state, Communicator& communicator,
                CheckpointStore* store);

  bool due(int64_t step) const;
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
  Manifest manifest_;  // of the present save
  std::string token_;  // of the run, the same on all ranks
  std::string folder_;
  std::unique_ptr<StopSignal> signal_;
  int64_t saves_ = 0;        // begun
  int64_t handed_over_ = 0;  // handed to the store, or known to be
  int64_t reported_ = 0;
  struct Report {
    std::string folder;
    Clock::time_point began;
    double copy_ms = 0, wait_ms = 0;
  };
  Report present_;
  std::deque<Report> committing_;  // handed to the store and not yet reported
  int64_t last_step_ = -1;
  bool stopping_ = false;
  Saver saver_;  // last: it reads what is above
};

}  // namespace ofsdp::runtime
