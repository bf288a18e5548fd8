// Trainer: the loop over updates.
//
// An update runs micro-batches, each weighted with its share in the global batch's kept labels.
// Then one exchange gives every rank the loss, the norm, the slowest rank's time and the next
// update's counts; it is also the barrier after which the new parameters may be gathered, and
// carries the present save's progress. Rank 0 writes metrics and progress.
//
// Must be used by the thread that made it; the loader has another thread. Allocates nothing after
// the first update with each batch shape. `run` is collective. Returns errors from CpuEngine,
// Loader and MetricsWriter.
#pragma once

#include "runtime/data/loader.h"
#include "runtime/engine/lr_schedule.h"
#include "runtime/log/log_parts.h"
#include "runtime/log/metrics.h"
#include "runtime/log/screen.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/rank_state.h"

namespace ofsdp::runtime {

// Returns how many updates a run makes: from the epochs or --steps, the smaller.
int64_t total_updates(const Options& options, const Sampler& sampler);

class Trainer {
 public:
  // `sampler` must be for the setup's training data. Nulls: the run saves nothing, hears no signal,
  // writes no lines besides the screen's (`log`: a descriptor, -1: none).
  Trainer(const RunSettings& settings, RankState& state, Communicator& communicator,
          const MemoryLedger& ledger, const Sampler& sampler, MetricsWriter& metrics,
          Checkpointing* checkpoints = nullptr, const StopSignal* signal = nullptr, int log = -1);

  // Trains from settings.start to the end, or until a signal on any rank stops the run. A signal
  // during an evaluation counts when the evaluation ends; one during the last update is too late.
  Status run();
  int stopped_by() const { return stopped_by_; }  // the signal; 0: none. The same on all ranks
  int64_t updates() const { return made_; }       // made in all, with those before a resume
  int64_t total() const { return total_; }        // in the run; fewer after an early stop

  // REQUIRES: `run` has returned and this is rank 0. If a signal stopped the run, `peak_bytes` has
  // only this rank's, and `exposed` is empty.
  const ClosingFacts& closing() const { return closing_; }
  // Returns this rank's first micro-batch in the last evaluation; null: there was none.
  const EvaluatedBatch* evaluated() const {
    return evaluator_ == nullptr ? nullptr : &evaluator_->first_batch();
  }

  // Runs update `step` alone, with the sampler's update step - 1, for a caller who passes batches.
  // Every rank gets the row; the trainer owns the row's losses. Prints nothing.
  Result<StepRow> run_one(int64_t step);

 private:
  struct UpdateSums {
    std::array<double, kMaxLossTerms> losses{};     // each term's
    std::array<double, kMaxLossTerms> next_kept{};  // each loss's
    double squared_norm = 0;
    double step_ms = 0;
    double samples = 0;
    double written = 0;  // saves written by every rank
    double signal = 0;   // that told a rank to stop; 0: none
  };

  Status begin(int64_t step);
  Status update(int64_t step);
  Status check_last(int64_t step);
  Status micro_batches(int64_t step);
  Status exchange_and_report(const std::optional<UpdateOutcome>& outcome, int64_t step);
  bool numbers_are_due(int64_t step) const;
  bool alike(int64_t step, int64_t micro) const;
  std::array<double, kMaxLossTerms> next_kept() const;
  double share_of_mean(size_t term) const;
  Result<UpdateSums> exchange(const UpdateSums& mine, int64_t step);
  Status hear_signal(int64_t step);
  void stop(double signal);
  UpdateNumbers numbers_of(int64_t step) const;
  double rate(const UpdateOutcome& outcome, int64_t epoch) const;
  Status check_scale(const UpdateOutcome& outcome);
  Status report(const UpdateOutcome& outcome, const UpdateSums& sums);
  Result<std::optional<EvalRow>> evaluate_when_due(int64_t step);
  Status save_when_due(int64_t step, const std::optional<EvalRow>& evaluation);
  void say_saved();
  double own_signal() const { return signal_ != nullptr ? signal_->number() : 0; }
  std::span<const WatchedUnit> watched(int64_t step) const;  // the update's norms; may be empty
  bool evaluation_due(int64_t step) const;
  int64_t evaluations_from(int64_t step) const;
  void watch(const EvalRow& row);
  void summarize(double seconds);
  Status finish(double seconds);

  const RunSettings& settings_;
  const Options& options_;
  const CompiledRun& plan_;
  RankState& state_;
  Communicator& communicator_;
  const MemoryLedger& ledger_;
  MetricsWriter& metrics_;
  Checkpointing* checkpoints_;
  const StopSignal* signal_;
  const Sampler& sampler_;
  int64_t total_;
  int64_t made_ = 0;
  LrSchedule schedule_;
  Progress progress_, log_;  // the screen, and the same lines in a file
  StepTimes times_;
  Loader loader_;
  std::unique_ptr<Evaluator> evaluator_;
  int stopped_by_ = 0;
  bool early_ = false;      // --early-stop ends the run
  int64_t skips_ = 0;       // updates skipped by float16
  int64_t not_better_ = 0;  // evaluations in a row without improvement
  std::optional<double> best_;
  bool warned_undefined_ = false, warned_not_finite_ = false;  // about evaluations
  const Batch* batch_ = nullptr;                               // from the loader
  const std::vector<LossTerm> terms_;
  std::array<double, kMaxLossTerms> kept_{};    // in the present update, over all ranks
  std::array<double, kMaxLossTerms> shares_{};  // the present micro-batch's, one per term
  RankNumbers numbers_;                         // for the exchange after an update
  std::vector<double> signals_;                 // room for those of all ranks
  std::vector<MetricValue> losses_;             // of row_
  StepRow row_;                                 // for the last update with known numbers
  Progress::Clock::time_point update_began_;
  int64_t tokens_a_sample_ = 1;
  double samples_ = 0, milliseconds_ = 0;  // in all updates so far
  ClosingFacts closing_;
};

}  // namespace ofsdp::runtime
