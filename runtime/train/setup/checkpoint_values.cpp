#include "runtime/train/setup/checkpoint_values.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {
namespace {

class CheckpointValues final : public InitialSource {
 public:
  CheckpointValues(std::unique_ptr<CheckpointReader> checkpoint, bool averages)
      : checkpoint_(std::move(checkpoint)), kind_(weights_kind(checkpoint_->manifest(), averages)) {
    for (const NamedTensor& t : checkpoint_->manifest().trained) trained_[t.name] = t.shape;
    for (const NamedTensor& t : checkpoint_->manifest().statistics) statistics_[t.name] = t.shape;
  }

  bool has(const Initializer& initializer) const override {
    return in(trained_, initializer) || in(statistics_, initializer);
  }

  Status read(const Initializer& initializer, int64_t first, std::span<float> dst) override {
    if (in(trained_, initializer)) {
      return checkpoint_->read(kind_, initializer.name, first, dst);
    }
    std::vector<float> all(static_cast<size_t>(initializer.shape.numel()));
    OFSDP_RETURN_IF_ERROR(checkpoint_->read_statistic(initializer.name, 0, all));
    std::copy_n(all.begin() + first, dst.size(), dst.begin());
    return {};
  }

 private:
  using Shapes = std::map<std::string, Shape>;
  static bool in(const Shapes& shapes, const Initializer& initializer) {
    const auto found = shapes.find(initializer.name);
    return found != shapes.end() && found->second == initializer.shape;
  }

  std::unique_ptr<CheckpointReader> checkpoint_;
  std::string kind_;
  Shapes trained_, statistics_;
};

}  // namespace

std::string weights_kind(const Manifest& manifest, bool averages) {
  const bool kept = std::ranges::count(manifest.states, kAverageState) > 0;
  return averages && kept ? kAverageState : kParameterKind;
}

Result<SavedRun> saved_run(const CheckpointReader& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  SavedRun saved;
  for (const NamedTensor& tensor : m.trained) saved.trained.insert(tensor.name);
  OFSDP_ASSIGN_OR_RETURN(saved.edits,
                         prefixed("--resume: " + checkpoint.folder(), edits_from(m.edits)));
  saved.classes = m.classes;
  saved.graph = m.graph;
  saved.folder = checkpoint.folder();
  return saved;
}

Result<SavedRun> saved_run(std::unique_ptr<CheckpointReader> checkpoint, bool averages) {
  OFSDP_ASSIGN_OR_RETURN(SavedRun saved, saved_run(*checkpoint));
  saved.values = std::make_shared<CheckpointValues>(std::move(checkpoint), averages);
  return saved;
}

Status take_values(const SavedRun& saved, OnnxFile& file) {
  const std::string found = graph_hash(file);
  OFSDP_REJECT_IF(found != saved.graph,
                  "--resume: {}: it is of another graph than {} (hash {}, found {})", saved.folder,
                  file.path(), saved.graph, found);
  file.set_initial(saved.values);
  return {};
}

ModelEdits edits_with(const SavedRun& saved, ModelEdits given) {
  if (!given.any()) return saved.edits;
  given.seed = given.adapters.seed = saved.edits.seed;
  if (!given.adapters.alpha) given.adapters.alpha = saved.edits.adapters.alpha;
  if (given.adapters.from.empty()) given.adapters.from = saved.edits.adapters.from;
  return given;
}

}  // namespace ofsdp::runtime
