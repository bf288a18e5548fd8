#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "importer/edit/model_edits.h"
#include "importer/file/tensor_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/trained_set.h"
#include "importer/write/model_copy.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::importer {
namespace {

constexpr int64_t kMergeChunk = int64_t{1} << 18;  // elements
constexpr int64_t kMergeGrain = 1024;

// The tensors of an adapter file: all adapters' A and B, and other weights whole.
struct AdapterContents {
  const AdapterSpec& spec;
  const std::vector<Adapter>& adapters;
  std::vector<std::string> whole;

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Adapter& adapter : adapters) names.insert(names.end(), {adapter.a(), adapter.b()});
    names.insert(names.end(), whole.begin(), whole.end());
    return names;
  }
};

// The name tells the format.
Result<TensorLayout> layout_of(const OnnxFile& file, const AdapterContents& contents,
                               const std::string& path) {
  std::map<std::string, Shape> shapes;
  for (const Initializer& weight : file.initializers()) shapes[weight.name] = weight.shape;
  std::vector<Initializer> tensors;
  for (const std::string& name : contents.names()) {
    tensors.push_back({adapter_file_name(name), DType::kFloat32, shapes.at(name)});
  }
  if (path.ends_with(".onnx_adapter")) return lay_out_ort_adapter(std::move(tensors));
  return lay_out_safetensors(tensors, {{kAlphaKey, format_text("{}", contents.spec.used_alpha())},
                                       {"lora_rank", std::to_string(contents.spec.rank)}});
}

// Returns the paths of the modules that have the weights; PEFT wants them by name.
std::vector<std::string> modules_of(const std::vector<std::string>& weights) {
  std::vector<std::string> modules;
  for (const std::string& weight : weights) {
    const size_t dot = weight.rfind('.');
    if (dot == std::string::npos || dot == 0) continue;
    const std::string module = weight.substr(0, dot);
    if (std::ranges::find(modules, module) == modules.end()) modules.push_back(module);
  }
  return modules;
}

// PEFT's configuration of the adapter, with the keys of its LoraConfig.
Status write_configuration(const AdapterContents& contents, const std::string& path) {
  std::vector<std::string> targets;
  for (const Adapter& adapter : contents.adapters) targets.push_back(adapter.name);
  const std::vector<std::string> saved = modules_of(contents.whole);
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", nullptr},
                                 {"base_model_name_or_path", nullptr},
                                 {"inference_mode", true},
                                 {"r", contents.spec.rank},
                                 {"lora_alpha", contents.spec.used_alpha()},
                                 {"lora_dropout", contents.spec.dropout},
                                 {"target_modules", targets},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false}};
  json["modules_to_save"] =
      saved.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(saved);
  const std::string text =
      json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return write_whole(path, [&](const std::string& temporary) -> Status {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(temporary));
    return write_exactly(file, 0, std::as_bytes(std::span(text)));
  });
}

// Writes PEFT's configuration next to an adapter file with PEFT's name.
Status write_beside(const AdapterContents& contents, const std::string& path) {
  if (base_filename(path) != kPeftFile) return {};
  return write_configuration(contents, join_path(parent_folder(path), kPeftConfig));
}

// The adapter file in progress.
class AdapterFile {
 public:
  explicit AdapterFile(TensorLayout layout) : layout_(std::move(layout)) {
    for (size_t i = 0; i < layout_.places.size(); ++i) index_[layout_.places[i].name] = i;
  }
  AdapterFile(AdapterFile&& other) noexcept
      : layout_(std::move(other.layout_)),
        index_(std::move(other.index_)),
        temporary_(std::move(other.temporary_)),
        owner_(std::exchange(other.owner_, false)) {}
  AdapterFile& operator=(AdapterFile&&) = delete;
  ~AdapterFile() { remove(); }

  Status create(const std::string& target) {
    OFSDP_ASSIGN_OR_RETURN(temporary_, create_temporary(target));
    owner_ = true;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(temporary_));
    return write_texts(file, layout_);
  }
  void join(const std::string& temporary) { temporary_ = temporary; }
  const std::string& temporary() const { return temporary_; }

  bool has(const std::string& tensor) const { return index_.contains(adapter_file_name(tensor)); }
  Status write(const std::string& tensor, int64_t first, std::span<const float> src) const {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(temporary_));
    return write_values(file, place(tensor), first, src);
  }
  Status read(const std::string& tensor, std::span<float> dst) const {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_reading(temporary_));
    return read_exactly(file, place(tensor).offset, std::as_writable_bytes(dst));
  }
  Status sync() const {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(temporary_));
    return sync_file(file);
  }
  Status publish(const std::string& path) {
    OFSDP_FAULT_IF(std::rename(temporary_.c_str(), path.c_str()) != 0,
                   "{}: cannot be renamed from {}: {}", path, temporary_, std::strerror(errno));
    owner_ = false;
    return sync_folder(parent_folder(path));
  }
  void remove() {
    if (owner_) unlink(temporary_.c_str());
    owner_ = false;
  }

 private:
  const Initializer& place(const std::string& tensor) const {
    return layout_.places[index_.at(adapter_file_name(tensor))];
  }

  TensorLayout layout_;
  std::map<std::string, size_t> index_;
  std::string temporary_;
  bool owner_ = false;  // true on rank 0 until it has published or removed the file
};

// Both files; `--adapter` or `--output` may be missing.
class AdaptedOutput final : public TrainedOutput {
 public:
  AdaptedOutput(const OnnxFile& base, AdapterContents contents, std::string path, AdapterFile file,
                std::optional<ModelOutput> model, bool inference)
      : base_(base),
        contents_(std::move(contents)),
        path_(std::move(path)),
        file_(std::move(file)),
        model_(std::move(model)),
        inference_(inference) {
    for (size_t i = 0; i < base.initializers().size(); ++i) {
      index_[base.initializers()[i].name] = i;
    }
  }

  std::string ticket() const override {
    return file_.temporary() + '\n' + (model_ ? model_->ticket() : std::string());
  }

  Status write(const Parameter& p, int64_t first, std::span<const float> src) const override {
    if (file_.has(p.name)) OFSDP_RETURN_IF_ERROR(file_.write(p.name, first, src));
    const auto found = index_.find(p.name);
    if (!model_ || found == index_.end()) return {};
    return model_->write(found->second, first, src);
  }

  Status finish() const override {
    OFSDP_RETURN_IF_ERROR(file_.sync());
    return model_ ? model_->finish() : Status{};
  }

  Status commit() override {
    if (model_) {
      for (const Adapter& adapter : contents_.adapters) OFSDP_RETURN_IF_ERROR(merge(adapter));
      OFSDP_RETURN_IF_ERROR(model_->finish());
      OFSDP_RETURN_IF_ERROR(commit_output(*model_, inference_));
    }
    if (!path_.empty()) {
      OFSDP_RETURN_IF_ERROR(file_.publish(path_));
      return write_beside(contents_, path_);
    }
    file_.remove();
    return {};
  }

 private:
  Status merge(const Adapter& adapter) const {
    OFSDP_ASSIGN_OR_RETURN(
        const AdapterMerge merge,
        AdapterMerge::make(adapter, [&](const std::string& name, std::span<float> dst) {
          return file_.read(name, dst);
        }));
    const size_t index = index_.at(adapter.weight);
    const Initializer& weight = base_.initializers()[index];
    std::vector<float> chunk(static_cast<size_t>(kMergeChunk));
    for (int64_t at = 0; at < weight.shape.numel(); at += kMergeChunk) {
      const auto part = std::span(chunk).first(
          static_cast<size_t>(std::min(kMergeChunk, weight.shape.numel() - at)));
      OFSDP_RETURN_IF_ERROR(base_.read(weight, at, part));
      merge.add_to(at, part);
      OFSDP_RETURN_IF_ERROR(model_->write(index, at, part));
    }
    return {};
  }

  const OnnxFile& base_;
  AdapterContents contents_;
  std::string path_;
  AdapterFile file_;
  std::optional<ModelOutput> model_;
  bool inference_;
  std::map<std::string, size_t> index_;  // base initializers by name
};

// A training makes the folder when it begins (make_adapter_folder); other commands make none.
Status check_adapter_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path folder = fs::path(path).parent_path();
  const bool made = fs::path(path).filename() == kPeftFile;
  while (made && !folder.empty() && !fs::exists(folder, error)) folder = folder.parent_path();
  const std::string place = made ? (folder / kPeftFile).string() : path;
  return check_output_path(place).with_prefix("--adapter");
}

class AdaptedSource final : public TrainingSource {
 public:
  AdaptedSource(EditedModel model, Graph symbolic, const Lowering* lowering, std::string adapter)
      : TrainingSource(std::move(model.file), std::move(symbolic), lowering),
        base_(std::move(model.base)),
        adapters_(std::move(model.adapters)),
        taken_(std::move(model.taken)),
        spec_(std::move(model.spec)),
        adapter_(std::move(adapter)) {}

  Status check_output(const std::string& path, const TrainedState& state) const override {
    if (!path.empty()) {
      if (state.inference) OFSDP_RETURN_IF_ERROR(check_inference_model(*base_));
      OFSDP_RETURN_IF_ERROR(check_mergeable(adapters_, "--output " + path));
      OFSDP_RETURN_IF_ERROR(check_output_path(path, *base_));
    }
    if (adapter_.empty()) return {};
    OFSDP_REJECT_IF(is_same_file(adapter_, base_->file()),
                    "--adapter {}: expected another file than the input", adapter_);
    OFSDP_RETURN_IF_ERROR(check_adapter_path(adapter_));
    return prefixed("--adapter " + adapter_,
                    layout_of(this->file(), contents(!path.empty()), adapter_))
        .status();
  }

  Result<std::unique_ptr<TrainedOutput>> begin_output(const std::string& path,
                                                      const TrainedState& state) const override {
    OFSDP_ASSIGN_OR_RETURN(TensorLayout layout,
                           layout_of(this->file(), contents(!path.empty()), adapter_));
    AdapterFile file(std::move(layout));
    OFSDP_RETURN_IF_ERROR(file.create(adapter_.empty() ? path + ".adapter" : adapter_));
    OFSDP_RETURN_IF_ERROR(write_first_values(file));
    std::optional<ModelOutput> model;
    if (!path.empty()) {
      OFSDP_ASSIGN_OR_RETURN(ModelOutput begun, ModelOutput::begin(*base_, path));
      model.emplace(std::move(begun));
    }
    return made(std::move(file), std::move(model), state);
  }

  Result<std::unique_ptr<TrainedOutput>> join_output(const std::string& ticket,
                                                     const TrainedState& state) const override {
    const size_t end = std::min(ticket.find('\n'), ticket.size());
    const bool merged = end + 1 < ticket.size();
    OFSDP_ASSIGN_OR_RETURN(TensorLayout layout,
                           layout_of(this->file(), contents(merged), adapter_));
    AdapterFile file(std::move(layout));
    file.join(ticket.substr(0, end));
    std::optional<ModelOutput> model;
    if (merged) {
      OFSDP_ASSIGN_OR_RETURN(ModelOutput joined, ModelOutput::join(*base_, ticket.substr(end + 1)));
      model.emplace(std::move(joined));
    }
    return made(std::move(file), std::move(model), state);
  }

  std::string adapter_alone() const override {
    return check_mergeable(adapters_, "").ok() ? "" : adapter_;
  }

 private:
  AdapterContents contents(bool merged) const {
    const bool whole = holds_whole_weights(adapter_, merged);
    return {spec_, adapters_, whole ? whole_weights() : std::vector<std::string>()};
  }

  // Returns the weights that this run trains besides the adapters, the statistics that it updates,
  // and what --lora-from has of them.
  std::vector<std::string> whole_weights() const {
    std::set<ValueId> updated;
    for (const Node& node : symbolic().nodes) {
      const bool updates = node.op->full_name() == "BatchNormalization" &&
                           node.attributes.i("training_mode", 0) != 0 && node.inputs.size() > 4;
      if (updates) updated.insert({node.inputs[3], node.inputs[4]});
    }
    std::vector<std::string> names = taken_;
    for (const Parameter& p : symbolic().parameters) {
      if (std::ranges::find(names, p.name) != names.end()) continue;
      const bool adapter = is_adapter_weight(p.name);
      const bool statistic = p.reason == kRunningStatistics && updated.contains(p.value);
      if (!p.of_teacher && !adapter && (p.trained || statistic)) names.push_back(p.name);
    }
    std::ranges::sort(names);
    return names;
  }

  // Training writes only trained values: not a frozen adapter's, nor an adapter's that no loss
  // reaches.
  Status write_first_values(const AdapterFile& adapters) const {
    for (const Initializer& weight : file().initializers()) {
      if (!adapters.has(weight.name)) continue;
      std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
      OFSDP_RETURN_IF_ERROR(file().read(weight, 0, values));
      OFSDP_RETURN_IF_ERROR(adapters.write(weight.name, 0, values));
    }
    return {};
  }

  std::unique_ptr<TrainedOutput> made(AdapterFile file, std::optional<ModelOutput> model,
                                      const TrainedState& state) const {
    const bool merged = model.has_value();
    return std::make_unique<AdaptedOutput>(*base_, contents(merged), adapter_, std::move(file),
                                           std::move(model), state.inference);
  }

  std::shared_ptr<const OnnxFile> base_;
  std::vector<Adapter> adapters_;
  std::vector<std::string> taken_;  // whole weights of --lora-from
  AdapterSpec spec_;
  std::string adapter_;
};

}  // namespace

bool holds_whole_weights(const std::string& adapter, bool merged) {
  return !merged || adapter.ends_with(".onnx_adapter") || base_filename(adapter) == kPeftFile;
}

Status write_adapter(const EditedModel& model, const std::vector<std::string>& whole,
                     const std::string& path, const ReadTensor& read) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path).with_prefix("--adapter"));
  const AdapterContents contents{model.spec, model.adapters, whole};
  OFSDP_ASSIGN_OR_RETURN(TensorLayout layout,
                         prefixed("--adapter " + path, layout_of(model.file, contents, path)));
  AdapterFile file(std::move(layout));
  OFSDP_RETURN_IF_ERROR(file.create(path));
  const std::vector<std::string> names = contents.names();
  for (const Initializer& weight : model.file.initializers()) {
    if (std::ranges::find(names, weight.name) == names.end()) continue;
    std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
    OFSDP_RETURN_IF_ERROR(read(weight.name, values));
    OFSDP_RETURN_IF_ERROR(file.write(weight.name, 0, values));
  }
  OFSDP_RETURN_IF_ERROR(file.sync());
  OFSDP_RETURN_IF_ERROR(file.publish(path));
  return write_beside(contents, path);
}

Result<AdapterMerge> AdapterMerge::make(const Adapter& adapter, const ReadTensor& read) {
  AdapterMerge merge(adapter);
  merge.a_.resize(static_cast<size_t>(adapter.rank * adapter.in));
  merge.b_.resize(static_cast<size_t>(adapter.out * adapter.rank));
  OFSDP_RETURN_IF_ERROR(read(adapter.a(), merge.a_));
  OFSDP_RETURN_IF_ERROR(read(adapter.b(), merge.b_));
  return merge;
}

void AdapterMerge::add_to(int64_t first, std::span<float> weights) const {
  kernels::parallel_for(
      static_cast<int64_t>(weights.size()), kMergeGrain, [&](int64_t begin, int64_t end) {
        adapter_.add_to(
            first + begin,
            weights.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), a_, b_);
      });
}

Status check_mergeable(const std::vector<Adapter>& adapters, const std::string& flag) {
  for (const Adapter& adapter : adapters) {
    OFSDP_REJECT_IF(!adapter.unmergeable.empty(),
                    "{}: the adapter of '{}' cannot be merged, as the weight {}: expected "
                    "--adapter FILE.safetensors in its place",
                    flag, adapter.weight, adapter.unmergeable);
  }
  return {};
}

Result<std::unique_ptr<TrainingSource>> open_edited_source(EditedModel model,
                                                           const Operators& operators,
                                                           TrainedRules rules,
                                                           const std::string& adapter,
                                                           const WantedValues& wanted) {
  if (!model.adapters.empty()) {
    rules.otherwise = "frozen by --lora";
    rules.train.insert(rules.train.end(), model.added.begin(), model.added.end());
  }
  rules.added.insert(model.added.begin(), model.added.end());
  for (const Adapter& a : model.adapters) rules.train.insert(rules.train.end(), {a.a(), a.b()});
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, import_onnx(model.file, operators, "", wanted));
  OFSDP_ASSIGN_OR_RETURN(Graph chosen, choose_candidates(graph, rules));
  if (rules.hold_frozen) chosen = hold_frozen(chosen, model.file);
  if (model.adapters.empty()) {
    return std::make_unique<TrainingSource>(std::move(model.file), std::move(chosen),
                                            operators.lowering);
  }
  for (const Parameter& p : chosen.parameters) {
    const bool adapted =
        std::ranges::any_of(model.adapters, [&](const Adapter& a) { return a.weight == p.name; });
    OFSDP_REJECT_IF(p.trained && adapted,
                    "--train: '{}' has an adapter of --lora: expected one of the two", p.name);
  }
  return std::unique_ptr<TrainingSource>(std::make_unique<AdaptedSource>(
      std::move(model), std::move(chosen), operators.lowering, adapter));
}

}  // namespace ofsdp::importer
