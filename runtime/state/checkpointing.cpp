#include "runtime/state/checkpointing.h"

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/base/random_word.h"

namespace ofsdp::runtime {
namespace {

double milliseconds(std::chrono::steady_clock::time_point from,
                    std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// The bits of a random number that a double holds.
double random_token() { return static_cast<double>(random_word() >> 12); }

SavedEvaluation saved(const EvalRow& row) {
  SavedEvaluation evaluation;
  const auto save = [&](const std::string& name, double value) {
    std::optional<double>& number = evaluation.numbers[name];
    if (std::isfinite(value)) number = value;
  };
  save("loss", row.loss);
  for (const MetricValue& m : row.metrics) save(m.name, m.value.value_or(std::nan("")));
  return evaluation;
}

}  // namespace

Checkpointing::Checkpointing(const RunSettings& settings, RankState& state,
                             Communicator& communicator, CheckpointStore* store)
    : settings_(settings),
      options_(settings.options.checkpoint),
      sampler_(*state.plan().train_sampler),
      state_(state),
      communicator_(communicator),
      store_(store),
      manifest_(describe_run(settings.options, state.plan(), state.setup())) {
  if (options_.save_on_signal) signal_ = std::make_unique<StopSignal>();
}

Result<std::unique_ptr<Checkpointing>> Checkpointing::make(const RunSettings& settings,
                                                           RankState& state,
                                                           Communicator& communicator,
                                                           CheckpointStore* store) {
  std::unique_ptr<Checkpointing> made(new Checkpointing(settings, state, communicator, store));
  OFSDP_RETURN_IF_ERROR(made->saver_.failure());  // it could not start
  OFSDP_ASSIGN_OR_RETURN(made->contents_, SaveContents::make(made->options_.type, state));
  std::vector<double> all(static_cast<size_t>(communicator.size()));
  const double mine = random_token();
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&mine, 1}, all, {"token of saves", -1, 0}));
  made->token_ = format_text("{:013x}", static_cast<uint64_t>(all[0]));
  return made;
}

Checkpointing::~Checkpointing() {
  saver_.stop();
  const bool whole = saver_.committed() == saves_;
  if (store_ != nullptr && !whole) (void)remove_all(folder_);
}

void Checkpointing::heard(double least_written, double stop_wishes) {
  stopping_ = stopping_ || stop_wishes > 0;
  if (handed_over_ < saves_ && least_written >= static_cast<double>(saves_)) commit_present();
}

// All ranks have written the present save.
void Checkpointing::commit_present() {
  handed_over_ = saves_;
  if (store_ == nullptr) return;
  saver_.commit({store_, folder_, manifest_});
  committing_.push_back(present_);
}

bool Checkpointing::due(int64_t step) const { return falls_due(options_.interval, sampler_, step); }

// Only rank 0 knows the other checkpoints; it has the row, too.
Result<bool> Checkpointing::best_so_far(const std::optional<EvalRow>& evaluation) {
  if (options_.keep_best.empty() || !evaluation) return false;
  OFSDP_RETURN_IF_ERROR(wait_for_all());
  double mine = 0;
  if (store_ != nullptr) {
    OFSDP_RETURN_IF_ERROR(saver_.wait());  // the store is the saver's until then
    mine = store_->is_best(saved(*evaluation)) ? 1 : 0;
  }
  std::vector<double> all(static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(communicator_.exchange({&mine, 1}, all, {"best evaluation", -1, 0}));
  return all[0] > 0;
}

Status Checkpointing::after_update(int64_t step, const std::optional<EvalRow>& evaluation,
                                   bool last) {
  OFSDP_RETURN_IF_ERROR(saver_.failure());
  OFSDP_ASSIGN_OR_RETURN(const bool best, best_so_far(evaluation));
  if (!last && !stopping_ && !best && !due(step)) return ok_status();
  return save(step, evaluation, last || stopping_ || options_.sync);
}

// The present save has been written by all ranks.
Status Checkpointing::wait_for_all() {
  if (handed_over_ == saves_) return ok_status();
  OFSDP_RETURN_IF_ERROR(saver_.wait());
  OFSDP_RETURN_IF_ERROR(communicator_.barrier({"end of the save", -1, manifest_.step}));
  commit_present();
  return ok_status();
}

Status Checkpointing::save(int64_t step, const std::optional<EvalRow>& evaluation, bool wait) {
  const Clock::time_point began = Clock::now();
  OFSDP_RETURN_IF_ERROR(wait_for_all());
  const Clock::time_point copying = Clock::now();
  OFSDP_RETURN_IF_ERROR(state_.fetch());
  OFSDP_ASSIGN_OR_RETURN(const std::vector<SliceSource> values, contents_->sources(!wait, step));
  const double copy_ms = milliseconds(copying, Clock::now());
  const ResumePoint position = sampler_.position(step);
  manifest_.step = step;
  manifest_.save = format_text("{}-{}", token_, step);
  manifest_.sampler.epoch = position.epoch;
  manifest_.sampler.sample = position.sample;
  // A run that goes on in another type has skipped updates, too, if an earlier part was in float16.
  const LossScale& scale = state_.executor().loss_scale();
  if (settings_.options.sharding.param_dtype == DType::kFloat16 || scale.skipped_updates > 0) {
    manifest_.loss_scale = SavedLossScale{scale.scale, scale.good_updates, scale.skipped_updates};
  }
  manifest_.evaluation.reset();
  if (evaluation) manifest_.evaluation = saved(*evaluation);
  folder_ = save_folder(options_.dir, step, token_);
  ++saves_;
  present_ = {join_path(options_.dir, checkpoint_name(step)), began};
  present_.copy_ms = copy_ms;
  WriteJob job = contents_->job(folder_, manifest_.save, values);
  if (communicator_.rank() == 0) job.configuration = settings_.configuration;
  saver_.write(std::move(job));
  present_.wait_ms = milliseconds(began, Clock::now());
  return wait ? finish() : ok_status();
}

Status Checkpointing::finish() {
  OFSDP_RETURN_IF_ERROR(wait_for_all());
  OFSDP_RETURN_IF_ERROR(saver_.wait());
  return communicator_.barrier({"end of the checkpoint", -1, manifest_.step});
}

std::string Checkpointing::newly_committed() {
  if (saver_.committed() == reported_) return "";
  ++reported_;
  const Report report = std::move(committing_.front());
  committing_.pop_front();
  int64_t numel = 0;
  for (const NamedTensor& tensor : manifest_.trained) numel += tensor.shape.numel();
  const double bytes =
      static_cast<double>(numel) * 4 * static_cast<double>(1 + manifest_.states.size());
  const double seconds = milliseconds(report.began, saver_.last_commit()) / 1e3;
  return format_text("saved {}  {:.1f} MB in {:.2f} s, the step waited {:.1f} ms (copy {:.1f} ms)",
                     report.folder, bytes / 1e6, seconds, report.wait_ms, report.copy_ms);
}

}  // namespace ofsdp::runtime
