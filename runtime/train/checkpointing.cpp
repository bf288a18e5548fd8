#include "runtime/train/checkpointing.h"

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "fsdp/checkpoint/shard_file.h"
#include "kernels/base/process.h"
#include "runtime/train/rank_state.h"

namespace ofsdp::runtime {

namespace {

constexpr const char* kFullModel = "model.onnx";

}  // namespace

Result<std::unique_ptr<SaveContents>> SaveContents::make(CheckpointType type, RankState& state) {
  std::unique_ptr<SaveContents> made(new SaveContents(type, state));
  if (type == CheckpointType::kFull) OFSDP_RETURN_IF_ERROR(made->plan_copy());
  return made;
}

// A full checkpoint contains the model as a file with a place for every value that changes.
Status SaveContents::plan_copy() {
  std::vector<int> changing;
  const int world = state_.plan().shards.world;
  const auto& parameters = state_.setup().graph.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].trained || is_carried(state_.plan(), static_cast<int>(i))) {
      changing.push_back(parameters[i].initializer);
    }
  }
  std::vector<std::string> taken{kManifestName, std::string(kManifestName) + ".tmp"};
  for (int rank = 0; rank < world; ++rank) {
    for (const PlannedFile& file : plan_shard_files({"", rank, world}, {})) {
      taken.push_back(file.file.name);
    }
  }
  OFSDP_ASSIGN_OR_RETURN(copy_, ModelCopy::plan(state_.setup().file, kFullModel, changing, taken));
  return ok_status();
}

int SaveContents::initializer_of(const SavedSlice& slice) const {
  return state_.parameter(slice.parameter).initializer;
}

const float* SaveContents::live(const SavedSlice& s) {
  if (s.statistic != nullptr) return state_.statistic(*s.statistic).data();
  const Unit& unit = state_.plan().shards.units[static_cast<size_t>(s.unit)];
  return state_.held(unit, s.state).values() + s.at;
}

StoredState SaveContents::live_state(const SavedSlice& s) const {
  const Unit& unit = state_.plan().shards.units[static_cast<size_t>(s.unit)];
  return state_.stored(unit, s.state).from(s.at);
}

Result<std::vector<SliceSource>> SaveContents::sources(bool staged, int64_t step) {
  if (staged) return this->staged(step);
  OFSDP_RETURN_IF_ERROR(check_weights(state_, step));
  std::vector<SliceSource> list;
  for (const SavedSlice& s : slices_) {
    const bool decoded = s.form != StateForm::kFloat32;
    list.push_back(decoded ? SliceSource{.state = live_state(s)} : SliceSource{.values = live(s)});
  }
  return list;
}

// Only rank 0 checks running statistics, although each rank saves a copy.
Result<std::vector<SliceSource>> SaveContents::staged(int64_t step) {
  std::vector<SliceSource> list;
  std::byte* to = state_.checkpoint_staging().data() + decoding_;
  for (const SavedSlice& s : slices_) {
    std::byte* const begin = std::exchange(to, to + staged_bytes(s));
    auto* const copy = reinterpret_cast<float*>(begin);
    if (s.form != StateForm::kFloat32) {
      list.push_back({.state = copy_state(live_state(s), s.slice.count, begin)});
      continue;
    }
    const bool weights = s.unit >= 0 ? s.state < 0 : state_.rank() == 0;
    if (!weights) {
      std::memcpy(copy, live(s), static_cast<size_t>(s.slice.bytes()));
    } else if (copy_has_nan(copy, live(s), s.slice.count)) {
      return nan_weights(state_, s.parameter, step);
    }
    list.push_back({.values = copy});
  }
  return list;
}

WriteJob SaveContents::job(const std::string& folder, const std::string& save,
                           const std::vector<SliceSource>& sources) const {
  WriteJob job{.folder = folder, .rank = state_.rank()};
  job.room = {reinterpret_cast<float*>(state_.checkpoint_staging().data()),
              decoding_ / sizeof(float)};
  std::vector<SourceSlice> own;  // slices in this rank's own file
  for (size_t i = 0; i < slices_.size(); ++i) {
    const SavedSlice& s = slices_[i];
    const bool in_model = copy_ && s.unit >= 0 && s.state < 0 && copy_->is_plain(initializer_of(s));
    if (!in_model) own.push_back({s.slice, s.shape, sources[i]});
  }
  job.files = plan_shard_files({save, job.rank, state_.plan().shards.world}, own);
  if (copy_) add_model_files(sources, job);
  return job;
}

// float32 values are slices of the model file. Values of other types are rounded into it and also
// go, as float32, into the rank's own file, like running statistics.
void SaveContents::add_model_files(const std::vector<SliceSource>& sources, WriteJob& job) const {
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
          {initializer, s.slice.first, {sources[i].values, static_cast<size_t>(s.slice.count)}});
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

Saver::Saver() : writing_("ofsdp-save", "the writer of checkpoints", [this] { do_jobs(); }) {
  request_run();  // no job yet: reports whether writing can start
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

// A copy, so that the next call returns the same error.
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

namespace {

double ms_between(std::chrono::steady_clock::time_point from,
                  std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// As many random bits as a double holds.
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
      manifest_(describe_run(settings.options, state.plan(), state.setup())) {}

Result<std::unique_ptr<Checkpointing>> Checkpointing::make(const RunSettings& settings,
                                                           RankState& state,
                                                           Communicator& communicator,
                                                           CheckpointStore* store) {
  std::unique_ptr<Checkpointing> made(new Checkpointing(settings, state, communicator, store));
  OFSDP_RETURN_IF_ERROR(made->saver_.failure());  // writing could not start
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

void Checkpointing::heard(double least_written) {
  if (handed_over_ < saves_ && least_written >= static_cast<double>(saves_)) commit_present();
}

// REQUIRES: all ranks have written the present save.
void Checkpointing::commit_present() {
  handed_over_ = saves_;
  if (store_ == nullptr) return;
  saver_.commit({store_, folder_, manifest_});
  committing_.push_back(present_);
}

bool Checkpointing::due(int64_t step) const { return falls_due(options_.interval, sampler_, step); }

// Only rank 0 knows the other checkpoints and has the row.
Result<bool> Checkpointing::best_so_far(const std::optional<EvalRow>& evaluation) {
  if (options_.keep_best.empty() || !evaluation) return false;
  OFSDP_RETURN_IF_ERROR(wait_for_all());
  double mine = 0;
  if (store_ != nullptr) {
    OFSDP_RETURN_IF_ERROR(saver_.wait());  // until then the saver uses the store
    mine = store_->is_best(saved(*evaluation)) ? 1 : 0;
  }
  std::vector<double> all(static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(communicator_.exchange({&mine, 1}, all, {"best evaluation", -1, 0}));
  return all[0] > 0;
}

// [Note: saves of a folder] A run without --checkpoint-dir saves into its own folder, at the
// default interval but at most once in a minute of training: a short epoch would be shorter than
// its save.
// The time is that of the slowest rank in each update, which all ranks know, so they agree.
bool Checkpointing::rested(double trained_ms) const {
  constexpr double kRest = 60e3;
  const bool asked_for = !(options_.interval == CheckpointOptions().interval);
  return !settings_.options.folder.keeps_checkpoints || asked_for ||
         trained_ms - saved_at_ms_ >= kRest;
}

Status Checkpointing::after_update(int64_t step, const std::optional<EvalRow>& evaluation,
                                   bool last, double trained_ms) {
  OFSDP_RETURN_IF_ERROR(saver_.failure());
  OFSDP_ASSIGN_OR_RETURN(const bool best, best_so_far(evaluation));
  const bool in_turn = due(step) && rested(trained_ms);
  if (!last && !stopping_ && !best && !in_turn) return ok_status();
  saved_at_ms_ = trained_ms;
  return save(step, evaluation, last || stopping_ || saves_in_step(settings_.options));
}

// Blocks until all ranks have written the present save.
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
  const double copy_ms = ms_between(copying, Clock::now());
  const ResumePoint position = sampler_.position(step);
  manifest_.step = step;
  manifest_.save = format_text("{}-{}", token_, step);
  manifest_.sampler.epoch = position.epoch;
  manifest_.sampler.sample = position.sample;
  // A run that was in float16 before may have skipped updates.
  const LossScale& scale = state_.executor().loss_scale();
  if (settings_.options.sharding.param_dtype == DType::kFloat16 || scale.skipped_updates > 0) {
    manifest_.loss_scale = SavedLossScale{scale.scale, scale.good_updates, scale.skipped_updates};
  }
  manifest_.evaluation.reset();
  if (evaluation) manifest_.evaluation = saved(*evaluation);
  manifest_.early_stop = early_stop_;
  folder_ = save_folder(options_.dir, step, token_);
  ++saves_;
  present_ = {join_path(options_.dir, checkpoint_name(step)), began};
  present_.copy_ms = copy_ms;
  WriteJob job = contents_->job(folder_, manifest_.save, values);
  if (communicator_.rank() == 0) job.configuration = settings_.configuration;
  saver_.write(std::move(job));
  present_.wait_ms = ms_between(began, Clock::now());
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
  const double seconds = ms_between(report.began, saver_.last_commit()) / 1e3;
  return format_text("saved {}  {:.1f} MB in {:.2f} s, the step waited {:.1f} ms (copy {:.1f} ms)",
                     report.folder, bytes / 1e6, seconds, report.wait_ms, report.copy_ms);
}

}  // namespace ofsdp::runtime
