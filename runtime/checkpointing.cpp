#include "runtime/checkpointing.h"

#include <sys/random.h>

#include <array>
#include <cmath>
#include <cstring>

namespace ofsdp {
namespace {

constexpr const char* kFullModel = "model.onnx";

double milliseconds(std::chrono::steady_clock::time_point from,
                    std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// The bits of a random number that a double holds.
double random_token() {
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t got = getrandom(&random, sizeof random, 0);
  return static_cast<double>(random >> 12);
}

SavedEvaluation saved(const EvalRow& row) {
  SavedEvaluation evaluation;
  if (std::isfinite(row.loss)) evaluation.loss = row.loss;
  if (row.accuracy && std::isfinite(*row.accuracy)) evaluation.accuracy = row.accuracy;
  return evaluation;
}

}  // namespace

Checkpointing::Checkpointing(const Options& options, const RunPlan& plan, const ModelSetup& setup,
                             RunState& state, Communicator& communicator, CheckpointStore* store)
    : options_(options),
      plan_(plan),
      setup_(setup),
      state_(state),
      communicator_(communicator),
      store_(store),
      slices_(saved_slices(plan, setup.graph, communicator.rank(), options.checkpoint.type)),
      manifest_(describe_run(options, plan, setup)) {
  if (options.checkpoint.save_on_signal) signal_ = std::make_unique<StopSignal>();
}

Result<std::unique_ptr<Checkpointing>> Checkpointing::make(const Options& options,
                                                           const RunPlan& plan,
                                                           const ModelSetup& setup, RunState& state,
                                                           Communicator& communicator,
                                                           CheckpointStore* store) {
  std::unique_ptr<Checkpointing> made(
      new Checkpointing(options, plan, setup, state, communicator, store));
  OFSDP_RETURN_IF_ERROR(made->plan_copy());
  std::vector<double> all(static_cast<size_t>(communicator.size()));
  const double mine = random_token();
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&mine, 1}, all, {"token of saves", -1, 0}));
  made->token_ = fmt::format("{:013x}", static_cast<uint64_t>(all[0]));
  return made;
}

void Checkpointing::heard(double least_written, double stop_wishes) {
  stopping_ = stopping_ || stop_wishes > 0;
  if (settled_ < saves_ && least_written >= static_cast<double>(saves_)) commit_present();
}

// All ranks have written the present save.
void Checkpointing::commit_present() {
  settled_ = saves_;
  if (store_ == nullptr) return;
  saver_.commit({store_, folder_, manifest_});
  committing_.push_back(present_);
}

bool Checkpointing::due(int64_t step) const {
  const Interval& interval = options_.checkpoint.interval;
  if (interval.unit == StepUnit::kStep) return step % interval.count == 0;
  return plan_.train_sampler[0].ends_epochs(step, interval.count);
}

// Only rank 0 knows the other checkpoints; it has the row, too.
Result<bool> Checkpointing::best_so_far(const std::optional<EvalRow>& evaluation) {
  if (options_.checkpoint.keep_best == KeepBest::kNone || !evaluation) return false;
  OFSDP_RETURN_IF_ERROR(settle());
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
  return save(step, evaluation, last || stopping_ || options_.checkpoint.sync);
}

// The present save has been written by all ranks.
Status Checkpointing::settle() {
  if (settled_ == saves_) return ok_status();
  OFSDP_RETURN_IF_ERROR(saver_.wait());
  OFSDP_RETURN_IF_ERROR(communicator_.barrier({"end of the save", -1, manifest_.step}));
  commit_present();
  return ok_status();
}

// A full checkpoint has the model as a file, in which every value that changes has its place.
Status Checkpointing::plan_copy() {
  if (options_.checkpoint.type != CheckpointType::kFull) return ok_status();
  std::vector<int> changing;
  const auto& parameters = setup_.graph.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].trained || is_carried(plan_, static_cast<int>(i))) {
      changing.push_back(parameters[i].initializer);
    }
  }
  OFSDP_ASSIGN_OR_RETURN(copy_, ModelCopy::plan(setup_.file, kFullModel, changing));
  return ok_status();
}

int Checkpointing::initializer_of(const SavedSlice& slice) const {
  return setup_.graph.parameters[static_cast<size_t>(slice.parameter)].initializer;
}

// Where the elements of each slice are: in the training state, or in the copy beside it.
std::vector<const float*> Checkpointing::sources(bool staged) {
  std::vector<const float*> list;
  auto* copy = reinterpret_cast<float*>(state_.checkpoint_staging().data());
  for (const SavedSlice& s : slices_) {
    const float* live = s.unit >= 0 ? state_.held(s.unit, s.state) + s.at
                                    : state_.kept(plan_.kept.entries()[s.kept_entry]).data();
    if (staged) {
      std::memcpy(copy, live, static_cast<size_t>(s.slice.bytes()));
      live = copy;
      copy += s.slice.count;
    }
    list.push_back(live);
  }
  return list;
}

WriteJob Checkpointing::write_job(const std::vector<const float*>& sources) {
  WriteJob job{folder_, communicator_.rank(), {}, {}};
  std::vector<SourceSlice> own;  // what goes into this rank's own file
  for (size_t i = 0; i < slices_.size(); ++i) {
    const SavedSlice& s = slices_[i];
    const bool in_model = copy_ && s.unit >= 0 && s.state < 0 && copy_->is_plain(initializer_of(s));
    if (!in_model) own.push_back({s.slice, s.shape, sources[i]});
  }
  job.files = plan_shard_files({manifest_.save, job.rank, communicator_.size()}, own);
  if (copy_) add_model_files(sources, job);
  return job;
}

// Values of float32 are slices of the model file. Those of other types are rounded into it, and are
// slices of the rank's own file besides, as are running statistics.
void Checkpointing::add_model_files(const std::vector<const float*>& sources, WriteJob& job) const {
  const size_t first = job.files.size();
  for (const ModelCopy::File& file : copy_->files()) {
    PlannedFile planned;
    planned.file.name = file.name;
    planned.file.rank = job.rank;
    planned.file.bytes = file.bytes;
    job.files.push_back(std::move(planned));
  }
  struct Rounded {
    int initializer;
    int64_t first;
    std::span<const float> values;
  };
  std::vector<Rounded> rounded;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const SavedSlice& s = slices_[i];
    const bool statistic = s.unit < 0;
    if (s.state >= 0 || (statistic && job.rank != 0)) continue;
    const int initializer = initializer_of(s);
    if (statistic || !copy_->is_plain(initializer)) {
      rounded.push_back(
          {initializer, s.slice.first, {sources[i], static_cast<size_t>(s.slice.count)}});
      continue;
    }
    const Initializer& place = copy_->initializer(initializer);
    PlannedFile& planned = job.files[first + static_cast<size_t>(place.file)];
    Slice slice = s.slice;
    slice.offset = place.offset + slice.first * 4;
    planned.file.slices.push_back(std::move(slice));
    planned.sources.push_back(sources[i]);
  }
  job.more = [copy = &*copy_, folder = job.folder, rest = job.rank == 0,
              rounded = std::move(rounded)](const std::atomic<bool>& cancelled) -> Status {
    for (const Rounded& r : rounded) {
      OFSDP_RETURN_IF_ERROR(copy->write(folder, r.initializer, r.first, r.values));
    }
    if (rest) OFSDP_RETURN_IF_ERROR(copy->write_rest(folder, cancelled));
    return copy->sync(folder);
  };
}

Status Checkpointing::save(int64_t step, const std::optional<EvalRow>& evaluation, bool wait) {
  const Clock::time_point began = Clock::now();
  OFSDP_RETURN_IF_ERROR(settle());
  const RunStart position = plan_.train_sampler[0].position(step);
  manifest_.step = step;
  manifest_.save = fmt::format("{}-{}", token_, step);
  manifest_.sampler.epoch = position.epoch;
  manifest_.sampler.sample = position.sample;
  manifest_.evaluation.reset();
  if (evaluation) manifest_.evaluation = saved(*evaluation);
  folder_ = save_folder(options_.checkpoint.dir, step, token_);
  ++saves_;
  present_ = {join_path(options_.checkpoint.dir, checkpoint_name(step)), began};
  const Clock::time_point copying = Clock::now();
  const std::vector<const float*> values = sources(!wait);
  present_.copy_ms = milliseconds(copying, Clock::now());
  saver_.write(write_job(values));
  present_.wait_ms = milliseconds(began, Clock::now());
  return wait ? finish() : ok_status();
}

Status Checkpointing::finish() {
  OFSDP_RETURN_IF_ERROR(settle());
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
  return fmt::format("saved {}  {:.1f} MB in {:.2f} s, the step waited {:.1f} ms (copy {:.1f} ms)",
                     report.folder, bytes / 1e6, seconds, report.wait_ms, report.copy_ms);
}

}  // namespace ofsdp
