#include "runtime/state/save_contents.h"

#include <cstring>
#include <utility>

#include "runtime/state/weight_check.h"

namespace ofsdp::runtime {
namespace {

constexpr const char* kFullModel = "model.onnx";

}  // namespace

Result<std::unique_ptr<SaveContents>> SaveContents::make(CheckpointType type, RankState& state) {
  std::unique_ptr<SaveContents> made(new SaveContents(type, state));
  if (type == CheckpointType::kFull) OFSDP_RETURN_IF_ERROR(made->plan_copy());
  return made;
}

// A full checkpoint has the model as a file, in which every value that changes has its place.
Status SaveContents::plan_copy() {
  std::vector<int> changing;
  const int world = state_.plan().plan.world;
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
  const Unit& unit = state_.plan().plan.units[static_cast<size_t>(s.unit)];
  return state_.held(unit, s.state).values() + s.at;
}

StoredState SaveContents::live_state(const SavedSlice& s) const {
  const Unit& unit = state_.plan().plan.units[static_cast<size_t>(s.unit)];
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

// Running statistics are rank 0's to look at, though each rank saves its own.
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
  std::vector<SourceSlice> own;  // what goes into this rank's own file
  for (size_t i = 0; i < slices_.size(); ++i) {
    const SavedSlice& s = slices_[i];
    const bool in_model = copy_ && s.unit >= 0 && s.state < 0 && copy_->is_plain(initializer_of(s));
    if (!in_model) own.push_back({s.slice, s.shape, sources[i]});
  }
  job.files = plan_shard_files({save, job.rank, state_.plan().plan.world}, own);
  if (copy_) add_model_files(sources, job);
  return job;
}

// Values of float32 are slices of the model file. Those of other types are rounded into it, and are
// slices of the rank's own file besides, as are running statistics.
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

}  // namespace ofsdp::runtime
