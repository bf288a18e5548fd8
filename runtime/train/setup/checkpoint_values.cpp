#include "runtime/train/setup/checkpoint_values.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status.h"
#include "kernels/base/text.h"
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

namespace {

// An edit of the saved run that differs from this run's.
struct OtherEdit {
  std::string flag;   // of the saved run, with its value
  std::string found;  // this run's value
};

std::vector<OtherEdit> other_numbers(const AdapterSpec& saved, const AdapterSpec& present) {
  std::vector<OtherEdit> others;
  const auto compare = [&](const char* flag, auto before, auto now) {
    if (before == now) return;
    others.push_back({format_text("{} {}", flag, before), format_text("{}", now)});
  };
  if (saved.patterns.empty() || present.patterns.empty()) return others;
  compare("--lora", joined(saved.patterns, " --lora "), joined(present.patterns, " --lora "));
  compare("--lora-rank", saved.rank, present.rank);
  compare("--lora-alpha", saved.used_alpha(), present.used_alpha());
  compare("--lora-dropout", saved.dropout, present.dropout);
  return others;
}

// Returns the edits that both runs have, with other values.
std::vector<OtherEdit> other_edits(const ModelEdits& saved, const ModelEdits& present) {
  std::vector<OtherEdit> others = other_numbers(saved.adapters, present.adapters);
  if (saved.head && present.head && *saved.head != *present.head) {
    others.push_back(
        {format_text("--replace-head {}", *saved.head), format_text("{}", *present.head)});
  }
  const std::string untied = joined(saved.untie, " --untie ");
  const std::string unties = joined(present.untie, " --untie ");
  if (!untied.empty() && !unties.empty() && untied != unties) {
    others.push_back({"--untie " + untied, unties});
  }
  const auto named = [](const AddedHead& head) {
    return format_text("{}:{}", head.outputs, head.name);
  };
  if (saved.added && present.added && named(*saved.added) != named(*present.added)) {
    others.push_back({"--add-head " + named(*saved.added), named(*present.added)});
  }
  return others;
}

// Returns the flags of the edits that `saved` has and `present` lacks.
std::vector<std::string> missing_edits(const ModelEdits& saved, const ModelEdits& present) {
  std::vector<std::string> flags;
  if (present.untie.empty()) {
    for (const std::string& name : saved.untie) flags.push_back("--untie " + name);
  }
  if (saved.head && !present.head) flags.push_back(format_text("--replace-head {}", *saved.head));
  if (saved.added && !present.added) {
    flags.push_back(format_text("--add-head {}:{}", saved.added->outputs, saved.added->name));
  }
  if (!present.adapters.patterns.empty()) return flags;
  for (const std::string& name : saved.adapters.patterns) flags.push_back("--lora " + name);
  return flags;
}

}  // namespace

Status with_edits_of(const ModelEdits& saved, const ModelEdits& present, Status refusal) {
  if (refusal.ok()) return refusal;
  const std::vector<std::string> flags = missing_edits(saved, present);
  const std::vector<OtherEdit> others = other_edits(saved, present);
  if (flags.empty() && !others.empty()) {
    return Status(refusal.kind(),
                  format_text("it was trained with {}: expected the same here, found {}",
                              escaped(others[0].flag), escaped(others[0].found)));
  }
  if (flags.empty()) return refusal;
  return Status(refusal.kind(),
                format_text("{}; it was trained with {}: expected the same here, found none",
                            refusal.message(), escaped(joined(flags, " "))));
}

Status take_values(const SavedRun& saved, const ModelEdits& present, OnnxFile& file) {
  if (const std::string found = graph_hash(file); found != saved.graph) {
    return with_edits_of(saved.edits, present,
                         input_error("it is of another graph than {} (hash {}, found {})",
                                     file.path(), saved.graph, found))
        .with_prefix("--resume: " + saved.folder);
  }
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
