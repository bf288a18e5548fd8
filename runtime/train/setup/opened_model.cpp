#include "runtime/train/setup/opened_model.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/dialects/training_info/rules_source.h"
#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/write/state_dict.h"
#include "kernels/base/text.h"
#include "kernels/core/device.h"
#include "runtime/train/setup/data_setup.h"
#include "runtime/train/setup/initial_values.h"
#include "runtime/train/setup/run_folder.h"

namespace ofsdp::runtime {

namespace {

class ModelOpener {
 public:
  ModelOpener(const Options& options, const ModelOrigin& origin, const Registry& registry,
              Communicator& communicator, MemoryLedger& ledger, const DataSpec* library_data,
              const SavedRun* saved)
      : options_(options),
        origin_(origin),
        registry_(registry),
        communicator_(communicator),
        ledger_(ledger),
        library_data_(library_data),
        saved_(saved),
        losses_(options.losses),
        train_(options.train) {}

  Result<OpenedModel> run() {
    OFSDP_ASSIGN_OR_RETURN(auto source, open_source());
    return OpenedModel{std::move(source), std::move(losses_), std::move(warnings_)};
  }

 private:
  // A file may decide its control flow by sizes that only the data have.
  Result<std::unique_ptr<TrainingSource>> open_source() {
    auto source = open_source(InputSizes());
    if (source.ok() || !lacks_known_numbers(source.error())) return source;
    const Result<DataSpec> spec =
        library_data_ != nullptr ? Result<DataSpec>(*library_data_) : find_data(options_);
    if (!spec.ok()) return source;
    const InputSizes sizes = column_sizes(*spec, options_, communicator_, ledger_);
    return sizes.empty() ? std::move(source) : open_source(sizes);
  }

  Result<std::unique_ptr<TrainingSource>> open_source(const InputSizes& sizes) {
    const Operators operators(registry_, &ort_operators());
    OFSDP_RETURN_IF_ERROR(check_adapter_options(options_));
    if (!origin_.artifacts.empty()) {
      OFSDP_RETURN_IF_ERROR(check_no_edits());
      return open_ort_source(origin_.artifacts, operators);
    }
    const std::string& path = origin_.weights.empty() ? options_.model : origin_.weights;
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(path, weights_by_name()));
    file.fix_inputs(sizes, input_numbers(options_));
    std::optional<TrainingInfo> info;
    if (options_.training_info) {
      OFSDP_ASSIGN_OR_RETURN(info, read_training_info(file, operators));
    }
    if (info) OFSDP_RETURN_IF_ERROR(follow(info->rules));
    if (options_.initialize && !info) {
      return input_error("--initialize: {} has no training_info to follow", options_.model);
    }
    if (options_.initialize) {
      OFSDP_RETURN_IF_ERROR(initialize(file, &info->rules, operators, options_.run.seed));
    }
    if (info) OFSDP_RETURN_IF_ERROR(check_no_edits());
    if (info) {
      return open_rules_source(std::move(file), *std::move(info), options_.freeze, operators);
    }
    OFSDP_ASSIGN_OR_RETURN(warnings_, warnings_about(file));
    const ModelEdits edits = edits_to_make();
    const bool learned = options_.qat_scales == QatScales::kLearned;
    TrainedRules rules{options_.freeze, train_, learned};
    if (saved_ != nullptr) rules.saved = saved_->trained;
    rules.changes_values = options_.command != Command::kEval;
    OFSDP_ASSIGN_OR_RETURN(rules.hold_frozen, computes_on_cpu());
    OFSDP_ASSIGN_OR_RETURN(rules.frozen, frozen_by_module(file));
    if (edits.added) losses_[0].prediction = edits.added->name;
    const WantedValues wanted = wanted_of(losses_);
    if (!edits.any()) {
      OFSDP_RETURN_IF_ERROR(take_saved_values(edits, file));
      return open_plain_source(std::move(file), operators, rules, wanted);
    }
    OFSDP_ASSIGN_OR_RETURN(EditedModel edited, edit_model(std::move(file), edits));
    OFSDP_RETURN_IF_ERROR(take_saved_values(edits, edited.file));
    OFSDP_ASSIGN_OR_RETURN(rules.frozen, frozen_by_module(edited.file));
    std::string adapter = options_.edit.adapter;
    const bool merges = check_mergeable(edited.adapters, "").ok();
    if (adapter.empty() && options_.folder.keeps_model && !merges) {
      adapter = join_path(options_.folder.path, kRunAdapter);
    }
    return open_edited_source(std::move(edited), operators, std::move(rules), adapter, wanted);
  }

  ModelEdits edits_to_make() const {
    return saved_ == nullptr ? edits_of(options_) : edits_with(*saved_, edits_of(options_));
  }

  Status take_saved_values(const ModelEdits& edits, OnnxFile& file) const {
    return saved_ != nullptr && saved_->values ? take_values(*saved_, edits, file) : ok_status();
  }

  // Constant nodes that the options or the checkpoint's run name are weights.
  std::vector<std::string> weights_by_name() const {
    std::vector<std::string> names = named_weights(options_);
    if (saved_ != nullptr)
      names.insert(names.end(), saved_->trained.begin(), saved_->trained.end());
    return names;
  }

  // Returns true if no rank will compute on a device.
  Result<bool> computes_on_cpu() const {
    const DeviceChoice choice = options_.launch.device;
    if (choice != DeviceChoice::kAuto) return choice == DeviceChoice::kCpu;
    const std::array<double, 1> mine{count_devices().ok() ? 1.0 : 0.0};
    std::vector<double> all(static_cast<size_t>(communicator_.size()));
    OFSDP_RETURN_IF_ERROR(communicator_.exchange(mine, all, {"devices there are", -1, 0}));
    return std::ranges::find(all, 1.0) == all.end();
  }

  // A model that brings a training must not be edited.
  Status check_no_edits() const {
    const EditOptions& edit = options_.edit;
    const char* flag = !edit.adapters.patterns.empty()  ? "--lora"
                       : edit.head                      ? "--replace-head"
                       : edit.added                     ? "--add-head"
                       : !edit.untie.empty()            ? "--untie"
                       : !options_.teacher.path.empty() ? "--teacher"
                                                        : nullptr;
    if (flag == nullptr) return {};
    return input_error("{}: expected a plain model, found {} with a training of its own", flag,
                       options_.model);
  }

  // Rank 0 prints them unless the model is refused.
  Result<std::string> warnings_about(const OnnxFile& file) const {
    OFSDP_ASSIGN_OR_RETURN(const std::string alpha, other_alpha_warning(options_));
    std::string merged;
    const bool finds = options_.command == Command::kDoctor;  // reports it itself
    if (communicator_.rank() == 0 && !finds && options_.edit.untie.empty()) {
      OFSDP_ASSIGN_OR_RETURN(merged, merged_copies_warning(file));
    }
    std::string lines;
    OFSDP_ASSIGN_OR_RETURN(const std::string gone, frozen_names_warning(file));
    for (const std::string& warning : {alpha, merged, gone}) {
      if (!warning.empty()) lines += format_text("fsdp-run: warning: {}\n", warning);
    }
    return lines;
  }

  // Another program may have renamed or folded weights that the module does not train.
  static Result<std::string> frozen_names_warning(const OnnxFile& file) {
    OFSDP_ASSIGN_OR_RETURN(std::set<std::string> names, frozen_by_module(file));
    for (const auto& weight : file.initializers()) names.erase(weight.name);
    if (names.empty()) return std::string();
    return format_text(
        "{}: metadata '{}' names '{}', which is no initializer: the weight may train under another "
        "name (--freeze)",
        file.path(), importer::kFrozenEntry, escaped(*names.begin()));
  }

  // Takes loss and trained parameters from the file's training_info.
  Status follow(const UpdateRules& rules) {
    if (!origin_.overriding.empty()) {
      return input_error(
          "{}: {} has a training_info that says how it is trained (--training-info off leaves it "
          "aside)",
          origin_.overriding, options_.model);
    }
    losses_[0].kind = LossKind::kOutput;
    losses_[0].output = rules.loss;
    train_ = rules.trained;
    return {};
  }

  const Options& options_;
  const ModelOrigin& origin_;
  const Registry& registry_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const DataSpec* library_data_;
  const SavedRun* saved_;
  // From the options, or from a training_info:
  std::vector<LossSpec> losses_;
  std::vector<std::string> train_;
  std::string warnings_;  // lines
};

}  // namespace

ModelEdits edits_of(const Options& options) {
  ModelEdits edits = options.edit;
  AdapterSpec& spec = edits.adapters;
  if (!spec.alpha && !spec.patterns.empty() && !spec.from.empty()) {
    const auto found = alpha_of_file(spec.from);  // edit_model reports its error
    if (found.ok()) spec.alpha = *found;
  }
  edits.prediction = options.losses[0].prediction;
  edits.seed = edits.adapters.seed = options.run.seed;
  return edits;
}

Status check_adapter_options(const Options& options) {
  const AdapterSpec& spec = options.edit.adapters;
  if (!spec.patterns.empty() || (spec.from.empty() && options.edit.adapter.empty())) return {};
  return input_error("{}: expected --lora with the weights that get adapters, found none",
                     spec.from.empty() ? "--adapter" : "--lora-from");
}

Result<std::string> other_alpha_warning(const Options& options) {
  const AdapterSpec& spec = options.edit.adapters;
  if (spec.patterns.empty() || spec.from.empty()) return std::string();
  OFSDP_ASSIGN_OR_RETURN(const auto found,
                         prefixed("--lora-from " + spec.from, alpha_of_file(spec.from)));
  if (!found || !spec.alpha || *found == *spec.alpha) return std::string();
  return format_text("--lora-alpha {}: {} was trained with {}", *spec.alpha, spec.from, *found);
}

WantedValues wanted_of(std::span<const LossSpec> losses) {
  WantedValues wanted{{}, true};
  const auto add = [&](const std::string& name) {
    if (!name.empty()) wanted.names.push_back(name);
  };
  for (const LossSpec& loss : losses) {
    const bool in_graph = loss.kind == LossKind::kOutput || loss.kind == LossKind::kContrastive;
    if (in_graph) add(loss.output);
    if (loss.kind == LossKind::kContrastive) add(loss.other);
    add(loss.prediction);
    add(loss.scores);
    if (!in_graph && loss.prediction.empty()) wanted.complete = false;
    if (loss.kind == LossKind::kAuto) wanted.complete = false;
  }
  return wanted;
}

Result<OpenedModel> open_model(const Options& options, const ModelOrigin& origin,
                               const Registry& registry, Communicator& communicator,
                               MemoryLedger& ledger, const DataSpec* library_data,
                               const SavedRun* saved) {
  return ModelOpener(options, origin, registry, communicator, ledger, library_data, saved).run();
}

}  // namespace ofsdp::runtime
