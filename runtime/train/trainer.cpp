#include "runtime/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/train/prepared_run.h"
#include "runtime/train/rank_state.h"

namespace ofsdp::runtime {
namespace {

using Clock = Progress::Clock;

constexpr size_t kFixedNumbers = 5;  // in an exchange, without the losses

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// `log`: none for the screen, else a descriptor.
Progress make_progress(const RunSettings& settings, int rank, int64_t total, int64_t tokens,
                       std::function<int64_t(int64_t)> evaluations_left,
                       std::optional<int> log = {}) {
  const Options& options = settings.options;
  OutputOptions files = options.files;
  if (log) files.quiet = false;
  ProgressOptions progress = stdout_progress(files, settings.start.update, total);
  progress.tokens_a_sample = tokens;
  progress.evaluations_left = std::move(evaluations_left);
  const bool silent = settings.given || (options.json && !log) ||
                      options.command == Command::kDoctor || options.command == Command::kCheck;
  if (log) {
    progress.fd = *log;
    progress.terminal = progress.colours = false;
  }
  if (rank != 0 || silent) progress.fd = -1;
  return Progress(progress);
}

std::vector<LossTerm> terms_of(const CompiledRun& plan) {
  for (const auto& [key, program] : plan.programs) {
    if (key.training) return program.graph.terms;
  }
  return {LossTerm{}};
}

}  // namespace

int64_t total_updates(const Options& options, const Sampler& sampler) {
  int64_t total = options.run.steps.value_or(kEndless);
  const bool endless = sampler.options().samples == kEndless;
  if (options.run.epochs && !endless) {
    total = std::min(total, sampler.updates_until(*options.run.epochs));
  }
  return total;
}

Trainer::Trainer(const RunSettings& settings, RankState& state, Communicator& communicator,
                 const MemoryLedger& ledger, const Sampler& sampler, MetricsWriter& metrics,
                 Checkpointing* checkpoints, const StopSignal* signal, int log)
    : settings_(settings),
      options_(settings.options),
      plan_(state.plan()),
      state_(state),
      communicator_(communicator),
      ledger_(ledger),
      metrics_(metrics),
      checkpoints_(checkpoints),
      signal_(signal),
      sampler_(sampler),
      total_(total_updates(options_, sampler_)),
      made_(settings.start.update),
      schedule_(make_lr_schedule(options_.schedule, options_.optimizer.lr, total_)),
      progress_(make_progress(settings, communicator.rank(), total_, tokens_a_sample(state.setup()),
                              [this](int64_t step) { return evaluations_from(step); })),
      log_(make_progress(
          settings, communicator.rank(), total_, tokens_a_sample(state.setup()),
          [this](int64_t step) { return evaluations_from(step); }, log)),
      loader_(state.setup().data.train_rows(), sampler_,
              label_rules(state.setup().counts, state.setup().data.train_rows()),
              state.train_staging(), state.setup().cuts.get()),
      terms_(terms_of(plan_)),
      numbers_(communicator.size(), kFixedNumbers + terms_.size() + state.setup().counts.size()),
      signals_(numbers_.ranks()),
      losses_(reported_losses(state.setup())),
      tokens_a_sample_(tokens_a_sample(state.setup())) {
  if (!settings.early_stop.empty()) not_better_ = static_cast<int64_t>(settings.early_stop[0]);
  if (settings.early_stop.size() > 1) best_ = settings.early_stop[1];
  if (options_.run.early_stop && not_better_ >= *options_.run.early_stop) {
    total_ = made_;  // the run has stopped before
    early_ = true;
  }
  if (!plan_.eval_sampler || settings.given) return;
  evaluator_ =
      std::make_unique<Evaluator>(state, communicator, *plan_.eval_sampler, AtNan::kGoesOn);
}

Status Trainer::run() {
  const int64_t start = settings_.start.update;
  loader_.start(start, total_);
  const auto began = Clock::now();
  OFSDP_RETURN_IF_ERROR(begin(start));
  while (made_ < total_ && stopped_by_ == 0) {
    const int64_t step = made_ + 1;
    OFSDP_RETURN_IF_ERROR(update(step));
    made_ = step;
    const bool known_last = step == total_ || stopped_by_ != 0;
    if (known_last) OFSDP_RETURN_IF_ERROR(check_last(step));
    OFSDP_ASSIGN_OR_RETURN(const auto evaluation, evaluate_when_due(step));
    const bool last = known_last || early_ || stopped_by_ != 0;
    if (last && !known_last) OFSDP_RETURN_IF_ERROR(check_last(step));
    if (early_) total_ = step;
    OFSDP_RETURN_IF_ERROR(save_when_due(step, evaluation));
  }
  progress_.end();
  log_.end();
  if (made_ == total_) stopped_by_ = 0;
  const double seconds = milliseconds(began, Clock::now()) / 1e3;
  summarize(seconds);
  return stopped_by_ != 0 ? Status{} : finish(seconds);
}

// All ranks pass the same number.
void Trainer::stop(double signal) {
  if (signal == 0 || stopped_by_ != 0) return;
  stopped_by_ = static_cast<int>(signal);
  if (checkpoints_ != nullptr) checkpoints_->stop();
}

// After an evaluation, which may take long: without it, the next update would be made.
Status Trainer::hear_signal(int64_t step) {
  if (options_.command != Command::kTrain || settings_.given) return {};
  const double mine = own_signal();
  OFSDP_RETURN_IF_ERROR(
      communicator_.exchange({&mine, 1}, signals_, {"end of the evaluation", -1, step}));
  stop(*std::ranges::max_element(signals_));
  update_began_ = Clock::now();
  return {};
}

// Takes the first batch and tells the ranks its counts, as each update does for the next batch.
Status Trainer::begin(int64_t step) {
  OFSDP_ASSIGN_OR_RETURN(batch_, loader_.next());
  UpdateSums first;
  first.next_kept = next_kept();
  OFSDP_ASSIGN_OR_RETURN(first, exchange(first, step));
  kept_ = first.next_kept;
  update_began_ = Clock::now();
  return {};
}

Result<StepRow> Trainer::run_one(int64_t step) {
  loader_.start(step - 1, step);
  OFSDP_RETURN_IF_ERROR(begin(step - 1));
  OFSDP_RETURN_IF_ERROR(update(step));
  return row_;
}

// Checks the weights when the run ends.
Status Trainer::check_last(int64_t step) {
  OFSDP_RETURN_IF_ERROR(state_.fetch());
  return check_weights(state_, step);
}

// The schedule counts updates that were made: if float16 skips one, the next has the same rate.
UpdateNumbers Trainer::numbers_of(int64_t step) const {
  const int64_t skipped = state_.executor().loss_scale().skipped_updates;
  const int64_t epoch = sampler_.epoch_of(step - 1), at = step - 1 - skipped;
  const double factor = rate_factor(schedule_, at, epoch);
  const double if_skipped = rate_factor(schedule_, std::max<int64_t>(at - 1, 0), epoch);
  return {.lr = schedule_.base_lr * factor,
          .step = step,
          .factor = factor,
          .skipped = skipped,
          .lr_if_skipped = schedule_.base_lr * if_skipped,
          .factor_if_skipped = if_skipped};
}

Status Trainer::update(int64_t step) {
  UpdateRunner& runner = state_.executor();
  runner.begin_update(numbers_of(step));
  OFSDP_RETURN_IF_ERROR(micro_batches(step));
  OFSDP_ASSIGN_OR_RETURN(auto outcome, runner.outcome(false));
  OFSDP_RETURN_IF_ERROR(exchange_and_report(outcome, step));
  if (!numbers_are_due(step)) return {};
  OFSDP_ASSIGN_OR_RETURN(outcome, runner.outcome(true));
  return outcome ? exchange_and_report(outcome, step) : Status{};
}

// On a device, numbers arrive one update late; they must be complete before an evaluation, a save
// or the end.
bool Trainer::numbers_are_due(int64_t step) const {
  return step == total_ || settings_.given || stopped_by_ != 0 ||
         (evaluator_ != nullptr && evaluation_due(step)) ||
         (checkpoints_ != nullptr && checkpoints_->may_save(step));
}

Status Trainer::micro_batches(int64_t step) {
  const int64_t accum = settings_.batch.grad_accum;
  for (int64_t micro = 0; micro < accum; ++micro) {
    for (size_t t = 0; t < terms_.size(); ++t) {
      shares_[t] = share_of_mean(t);
    }
    const std::span<const double> shares(shares_.data(), terms_.size());
    BoundProgram& program = state_.program({.batch = batch_->size,
                                            .training = true,
                                            .first_micro = micro == 0,
                                            .last_micro = micro == accum - 1,
                                            .length = batch_->length});
    OFSDP_RETURN_IF_ERROR(state_.executor().run(
        program, {batch_->columns, batch_->sample_index, shares, alike(step, micro)}));
    loader_.release();
    OFSDP_ASSIGN_OR_RETURN(batch_, loader_.next());
  }
  return {};
}

// `outcome` belongs to this update or, on a device, to the one before; none: not known yet.
Status Trainer::exchange_and_report(const std::optional<UpdateOutcome>& outcome, int64_t step) {
  UpdateSums mine;
  if (outcome) mine.losses = outcome->losses;
  if (outcome) mine.squared_norm = outcome->squared_norm;
  if (outcome) mine.samples = outcome->samples;
  mine.next_kept = next_kept();
  mine.step_ms = milliseconds(update_began_, Clock::now());
  const int64_t exchange_began = nanoseconds_now();
  OFSDP_ASSIGN_OR_RETURN(const UpdateSums sums, exchange(mine, step));
  state_.executor().end_update(exchange_began);
  update_began_ = Clock::now();
  kept_ = sums.next_kept;
  return outcome ? report(*outcome, sums) : Status{};
}

// Callers on several ranks may pass different row counts, unknown to this rank.
bool Trainer::alike(int64_t step, int64_t micro) const {
  if (settings_.given && communicator_.size() > 1) return false;
  return sampler_.alike(step - 1, micro);
}

// Returns this rank's part in the divisors of the next update's loss means: samples or labels; for
// the mean over ranks 1 if it has any.
std::array<double, kMaxLossTerms> Trainer::next_kept() const {
  std::array<double, kMaxLossTerms> kept{};
  if (batch_ == nullptr) return kept;
  const bool global = options_.loss_mean == LossMean::kGlobal;
  for (size_t i = 0; i < batch_->kept.size(); ++i) {
    kept[i] = global ? batch_->kept_in_update[i] : batch_->counted_in_update[i] > 0 ? 1 : 0;
  }
  return kept;
}

// Returns the weight by which a term of the present micro-batch counts. Sums are added, whatever
// --loss-mean says. With the mean over ranks, a rank averages its micro-batches as PyTorch
// accumulates; micro-batches and ranks without a kept label are left out.
double Trainer::share_of_mean(size_t term) const {
  const TermForm form = state_.setup().counts[term].form;
  if (form == TermForm::kSum) return batch_->size > 0 ? 1 : 0;
  if (form == TermForm::kNumerator) return kept_[term] > 0 ? 1 / kept_[term] : 0;
  const double kept = batch_->kept[term];
  if (kept_[term] <= 0 || kept <= 0) return 0;
  if (options_.loss_mean == LossMean::kGlobal) return kept / kept_[term];
  return 1.0 / (static_cast<double>(batch_->counted_in_update[term]) * kept_[term]);
}

Result<Trainer::UpdateSums> Trainer::exchange(const UpdateSums& mine, int64_t step) {
  const size_t terms = terms_.size(), losses = numbers_.mine().size() - kFixedNumbers - terms;
  const bool saves = checkpoints_ != nullptr;
  const std::span<double> sent = numbers_.mine();
  sent[0] = mine.squared_norm;
  sent[1] = mine.step_ms;
  sent[2] = mine.samples;
  sent[3] = saves ? checkpoints_->written() : 0;
  sent[4] = own_signal();
  std::copy_n(mine.losses.begin(), terms, sent.begin() + kFixedNumbers);
  std::copy_n(mine.next_kept.begin(), losses, sent.end() - static_cast<ptrdiff_t>(losses));
  OFSDP_RETURN_IF_ERROR(numbers_.exchange(communicator_, {"end of the update", -1, step}));
  UpdateSums sums;
  sums.written = numbers_.of(0)[3];
  for (size_t r = 0; r < numbers_.ranks(); ++r) {
    const std::span<const double> rank = numbers_.of(r);
    sums.squared_norm += rank[0];
    sums.step_ms = std::max(sums.step_ms, rank[1]);
    sums.samples += rank[2];
    sums.written = std::min(sums.written, rank[3]);
    sums.signal = std::max(sums.signal, rank[4]);
    for (size_t t = 0; t < terms; ++t) sums.losses[t] += rank[kFixedNumbers + t];
    for (size_t i = 0; i < losses; ++i) sums.next_kept[i] += rank[kFixedNumbers + terms + i];
  }
  if (saves) checkpoints_->heard(sums.written);
  stop(sums.signal);
  return sums;
}

// For display: a training_info has its own rate.
double Trainer::rate(const UpdateOutcome& outcome, int64_t epoch) const {
  const UpdateProgram* program = state_.update_program();
  if (program != nullptr) return program->rate(outcome.optimizer_step);
  const int64_t made = outcome.optimizer_step - settings_.optimizer_steps - 1;
  return learning_rate(schedule_, made, epoch);
}

// Ends the run if an update was skipped at the smallest loss scale, which happens on all ranks at
// once. The first rank that knows the node reports it, else the first with a gradient that is not
// finite.
Status Trainer::check_scale(const UpdateOutcome& outcome) {
  if (!outcome.skipped || outcome.scale > LossScale::kMin) return {};
  const CollectiveSite site{"end of the run", -1, outcome.step};
  const double knows = outcome.cause.find("node '") == std::string::npos ? 0 : 1;
  std::vector<double> all(numbers_.ranks());
  OFSDP_RETURN_IF_ERROR(communicator_.exchange({&knows, 1}, all, site));
  int rank = 0;
  for (const bool node : {false, true}) {
    for (size_t r = all.size(); r-- > 0;) {
      if (node ? all[r] > 0 : !std::isfinite(numbers_.of(r)[0])) rank = static_cast<int>(r);
    }
  }
  if (rank != communicator_.rank()) {
    return communicator_.barrier(site);  // until that rank ends
  }
  return fault(
      "{}: gradients are not finite at step {}, rank {}: the loss scale of float16 is {} and can "
      "fall no further{}{}",
      state_.setup().graph.file, outcome.step, rank, outcome.scale,
      outcome.cause.empty() ? "" : ": ", outcome.cause);
}

Status Trainer::report(const UpdateOutcome& outcome, const UpdateSums& sums) {
  times_.add(sums.step_ms);
  skips_ += outcome.skipped ? 1 : 0;
  samples_ += sums.samples;
  milliseconds_ += sums.step_ms;
  const int64_t step = outcome.step, epoch = sampler_.epoch_of(step - 1);
  double loss = 0;
  for (size_t t = 0; t < terms_.size(); ++t) loss += terms_[t].factor * sums.losses[t];
  for (size_t i = 0; i < losses_.size(); ++i) losses_[i].value = sums.losses[i];
  row_ = {.step = step,
          .epoch = epoch,
          .loss = loss,
          .grad_norm = std::sqrt(sums.squared_norm),
          .lr = rate(outcome, epoch),
          .step_ms = sums.step_ms,
          .samples_per_s = sums.samples / sums.step_ms * 1e3,
          .peak_bytes = ledger_.peak(),
          .skipped = outcome.skipped,
          .skips = skips_,
          .losses = losses_,
          .watch = watched(step)};
  if (communicator_.rank() == 0) {
    progress_.step(row_, static_cast<int64_t>(sums.samples));
    log_.step(row_, static_cast<int64_t>(sums.samples));
    OFSDP_RETURN_IF_ERROR(metrics_.step(row_));
  }
  return check_scale(outcome);
}

std::span<const WatchedUnit> Trainer::watched(int64_t step) const {
  const Watch* const watch = state_.watch();
  const bool due = watch != nullptr && step % plan_.watch_interval == 0;
  return due ? watch->units() : std::span<const WatchedUnit>();
}

bool Trainer::evaluation_due(int64_t step) const {
  return step == total_ || falls_due(options_.run.eval_interval, sampler_, step);
}

// Returns how many evaluations are due at update `step` and later.
int64_t Trainer::evaluations_from(int64_t step) const {
  if (evaluator_ == nullptr) return 0;
  const Interval& every = options_.run.eval_interval;
  const auto due = [&](int64_t updates) {
    const int64_t ended = every.unit == StepUnit::kStep ? updates : sampler_.epoch_of(updates);
    return ended / every.count;
  };
  return due(total_) - due(step - 1) + (falls_due(every, sampler_, total_) ? 0 : 1);
}

Result<std::optional<EvalRow>> Trainer::evaluate_when_due(int64_t step) {
  if (evaluator_ == nullptr || !evaluation_due(step)) return std::optional<EvalRow>();
  OFSDP_ASSIGN_OR_RETURN(const EvalRow row,
                         evaluator_->run(step, sampler_.epoch_of(step - 1), &progress_));
  update_began_ = Clock::now();
  watch(row);
  if (communicator_.rank() == 0) {
    progress_.eval(row);
    log_.eval(row);
    if (!closing_.evaluation) closing_.evaluation.emplace();
    closing_.evaluation->take(row);
    if (!warned_undefined_) warned_undefined_ = warn_of_undefined(*evaluator_, row);
    if (!warned_not_finite_) warned_not_finite_ = warn_of_not_finite(*evaluator_, row);
    OFSDP_RETURN_IF_ERROR(metrics_.eval(row));
  }
  OFSDP_RETURN_IF_ERROR(hear_signal(step));
  return std::optional(row);
}

// All ranks have the same row, so they decide alike. An undefined value is not better, nor is one
// that is not finite.
void Trainer::watch(const EvalRow& row) {
  if (!options_.run.early_stop) return;
  const std::string& name = options_.checkpoint.keep_best;
  double value = row.loss;
  for (const MetricValue& metric : row.metrics) {
    if (metric.name == name) value = metric.value.value_or(std::nan(""));
  }
  const bool lower = lower_is_better(options_.run.eval_metrics, name);
  const bool better = std::isfinite(value) && is_better(lower, value, best_.value_or(std::nan("")));
  not_better_ = better ? 0 : not_better_ + 1;
  if (better) best_ = value;
  early_ = not_better_ >= *options_.run.early_stop;
}

Status Trainer::save_when_due(int64_t step, const std::optional<EvalRow>& evaluation) {
  if (checkpoints_ == nullptr) return {};
  if (options_.run.early_stop) checkpoints_->set_early_stop(not_better_, best_);
  OFSDP_RETURN_IF_ERROR(
      checkpoints_->after_update(step, evaluation, step == total_, milliseconds_));
  say_saved();
  return {};
}

void Trainer::say_saved() {
  if (communicator_.rank() != 0) return;
  for (std::string line; !(line = checkpoints_->newly_committed()).empty();) {
    progress_.line(line);
    log_.line(line);
  }
}

// This rank's part of closing_.
void Trainer::summarize(double seconds) {
  const int64_t step = row_.step, samples = sampler_.options().samples;
  const ResumePoint at = sampler_.position(step);
  closing_.updates = step - settings_.start.update;
  closing_.step = step;
  closing_.total = total_;
  closing_.epoch = row_.epoch;
  if (samples != kEndless) {
    closing_.epochs = double(at.epoch) + double(at.sample) / double(samples);
  }
  closing_.loss = row_.loss;
  closing_.skipped = skips_;
  closing_.stopped = stopped_by_ != 0;
  closing_.stopped_early = early_;
  closing_.seconds = seconds;
  closing_.samples_per_s = samples_ / milliseconds_ * 1e3;
  closing_.tokens_a_sample = tokens_a_sample_;
  closing_.median_step_ms = times_.median();
  closing_.peak_bytes = {ledger_.peak()};
}

Status Trainer::finish(double seconds) {
  const std::array<double, 2> mine{static_cast<double>(ledger_.peak()),
                                   static_cast<double>(plan_.memory.planned_bytes())};
  const auto size = static_cast<size_t>(communicator_.size());
  std::vector<double> all(2 * size);
  OFSDP_RETURN_IF_ERROR(communicator_.exchange(mine, all, {"end of the run", -1, total_}));
  OFSDP_ASSIGN_OR_RETURN(const std::string exposed,
                         exposed_text(state_.executor().exposed(), plan_.shards, communicator_,
                                      options_.files.verbose));
  if (communicator_.rank() != 0) return {};
  std::vector<uint64_t> peak, planned;
  for (size_t r = 0; r < size; ++r) {
    peak.push_back(static_cast<uint64_t>(all[2 * r]));
    planned.push_back(static_cast<uint64_t>(all[2 * r + 1]));
  }
  closing_.peak_bytes = peak;
  closing_.exposed = exposed;
  return metrics_.end({total_, seconds, times_.median(), peak, planned, early_, skips_});
}

}  // namespace ofsdp::runtime
