// Trainer: the loop over updates: batches in, programs run, numbers out.
//
// An update: its micro-batches run, each weighted with its share of the kept labels of the global
// batch; then one exchange tells every rank the loss, the norm, the slowest rank's time, and the
// count of the next update, and is the barrier after which the new parameters may be gathered.
// Rank 0 writes metrics and progress. That exchange also says how far the save under way is.
//
// Ownership: borrows everything. Threads: the one that made it; the loader has a helper of its own.
// After the first update of each batch shape nothing here allocates. `run` is collective. Errors:
// as CpuEngine, Loader, MetricsWriter.
#pragma once

#include "runtime/data/loader.h"
#include "runtime/engine/lr_schedule.h"
#include "runtime/log/metrics.h"
#include "runtime/log/progress.h"
#include "runtime/log/screen.h"
#include "runtime/log/step_times.h"
#include "runtime/state/checkpointing.h"
#include "runtime/state/rank_state.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/rank_numbers.h"

namespace ofsdp::runtime {

// Updates of a whole run: by epochs or --steps, whichever ends first.
int64_t total_updates(const Options& options, const Sampler& sampler);

class Trainer {
 public:
  // `sampler`: of the training data, which are the setup's.
  Trainer(const RunSettings& settings, RankState& state, Communicator& communicator,
          const MemoryLedger& ledger, const Sampler& sampler, MetricsWriter& metrics,
          Checkpointing* checkpoints = nullptr);

  // From settings.start to the end, or until a signal has stopped it.
  Status run();
  bool stopped() const { return stopped_; }
  int64_t updates() const { return total_; }  // of the run; fewer than planned after an early stop

  // Facts of the end, after `run`, on rank 0 of a run that was not stopped.
  const ClosingFacts& closing() const { return closing_; }

  // Update number `step` alone, for a caller who brings its batches: update step - 1 of the
  // sampler, from the setup's training data. Every rank gets the numbers, whose losses are the
  // trainer's; nothing is printed.
  Result<StepRow> run_one(int64_t step);

 private:
  struct UpdateSums {
    std::array<double, kMostLossTerms> losses{};     // of each term
    std::array<double, kMostLossTerms> next_kept{};  // of each loss
    double squared_norm = 0;
    double step_ms = 0;
    double samples = 0;
    double written = 0;      // saves that every rank has written
    double stop_wishes = 0;  // ranks that were told to stop
  };

  Status begin(int64_t step);
  Status update(int64_t step);
  Status check_last(int64_t step);
  Status micro_batches(int64_t step);
  Status exchange_and_report(const std::optional<UpdateOutcome>& outcome, int64_t step);
  bool numbers_are_due(int64_t step) const;
  bool alike(int64_t step, int64_t micro) const;
  std::array<double, kMostLossTerms> next_kept() const;
  double share_of_mean(size_t loss) const;
  Result<UpdateSums> exchange(const UpdateSums& mine, int64_t step);
  UpdateNumbers numbers_of(int64_t step) const;
  double rate(const UpdateOutcome& outcome, int64_t epoch) const;
  Status check_scale(const UpdateOutcome& outcome);
  Status report(const UpdateOutcome& outcome, const UpdateSums& sums);
  Result<std::optional<EvalRow>> evaluate_when_due(int64_t step);
  Status save_when_due(int64_t step, const std::optional<EvalRow>& evaluation);
  void say_saved();
  std::span<const WatchedUnit> watched(int64_t step) const;  // norms of the update; or none
  bool evaluation_due(int64_t step) const;
  void watch(const EvalRow& row);
  Status finish(double seconds);

  const RunSettings& settings_;
  const Options& options_;
  const RunPlan& plan_;
  RankState& state_;
  Communicator& communicator_;
  const MemoryLedger& ledger_;
  MetricsWriter& metrics_;
  Checkpointing* checkpoints_;
  const Sampler& sampler_;
  int64_t total_;
  LrSchedule schedule_;
  Progress progress_;
  StepTimes times_;
  Loader loader_;
  std::unique_ptr<Evaluator> evaluator_;
  bool stopped_ = false;
  bool early_ = false;      // --early-stop ends the run
  int64_t skips_ = 0;       // updates that float16 has skipped
  int64_t not_better_ = 0;  // evaluations in a row
  std::optional<double> best_;
  bool warned_ = false;           // of an evaluation with undefined values
  const Batch* batch_ = nullptr;  // taken from the loader
  const std::vector<LossTerm> terms_;
  std::array<double, kMostLossTerms> kept_{};    // of the present update, all ranks together
  std::array<double, kMostLossTerms> shares_{};  // of the present micro-batch, of each term
  RankNumbers numbers_;                          // of an exchange
  std::vector<MetricValue> losses_;              // of row_
  StepRow row_;                                  // of the last update whose numbers are known
  Progress::Clock::time_point update_began_;
  int64_t tokens_a_sample_ = 1;
  double samples_ = 0, milliseconds_ = 0;  // of the updates so far
  ClosingFacts closing_;
};

}  // namespace ofsdp::runtime
