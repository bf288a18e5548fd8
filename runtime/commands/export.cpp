#include "runtime/commands/export.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/checkpoint_store.h"
#include "importer/edit/adapted_source.h"
#include "importer/normalize/inference_mode.h"
#include "importer/proto/graph_hash.h"
#include "importer/write/model_output.h"
#include "importer/write/safetensors_output.h"
#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"
#include "runtime/commands/verify_export.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // elements
constexpr double kVerified = 1e-5;            // of the largest output

// CKPT_DIR itself, or the latest in it that can be opened.
Result<CheckpointReader> open_checkpoint(const std::string& path) {
  if (is_file(join_path(path, kManifestName))) return CheckpointReader::open(path);
  Status first;
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, complete_checkpoints(path));
  for (const std::string& name : names) {
    Result<CheckpointReader> reader = CheckpointReader::open(join_path(path, name));
    if (reader.ok()) return reader;
    if (first.ok()) first = std::move(reader).status();
  }
  if (!first.ok()) return first;
  return input_error("{}: expected a complete checkpoint, found {}", path,
                     is_folder(path) ? "a folder without one" : "none");
}

// The file that a checkpoint was made from, with the run's edits: what was trained, and what is
// written.
Result<EditedModel> open_model(const CheckpointReader& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  const std::string folder = absolute_path(checkpoint.folder());
  const std::string name = filename_of(m.model);
  std::vector<std::string> places;
  if (m.type == "full") places.push_back(join_path(folder, "model.onnx"));
  places.push_back(m.model);
  places.push_back(join_path(folder_of(folder), name));
  places.push_back(join_path(folder_of(folder_of(folder)), name));
  OFSDP_ASSIGN_OR_RETURN(const ModelEdits edits,
                         prefixed(checkpoint.folder(), edits_from(m.edits)));
  for (const std::string& place : places) {
    if (!is_file(place)) continue;
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(place));
    if (!edits.any()) {
      if (graph_hash(file) != m.graph) continue;
      return EditedModel{std::make_shared<const OnnxFile>(std::move(file)), {}, {}};
    }
    Result<EditedModel> edited = edit_model(std::move(file), edits);
    if (edited.ok() && graph_hash(edited->file) == m.graph) return edited;
  }
  return input_error(
      "{}: expected the model it was trained from (graph {}) in {} or beside the checkpoint, found "
      "none",
      checkpoint.folder(), m.graph, m.model);
}

class Exporter {
 public:
  Exporter(const Options& options, CheckpointReader& checkpoint, const EditedModel& model)
      : options_(options), checkpoint_(checkpoint), model_(*model.base) {
    for (const Adapter& adapter : model.adapters) adapters_[adapter.weight] = &adapter;
    for (const NamedTensor& t : checkpoint.manifest().trained) kinds_[t.name] = kParameterKind;
    for (const NamedTensor& t : checkpoint.manifest().statistics) kinds_[t.name] = kStatisticKind;
  }

  Status write() {
    const std::string& path = options_.files.output;
    if (options_.format == "safetensors") {
      return write_safetensors(model_, path, [this](int i, int64_t first, std::span<float> dst) {
        return read(model_.initializers()[static_cast<size_t>(i)], first, dst);
      });
    }
    OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::begin(model_, path));
    OFSDP_RETURN_IF_ERROR(rescale(output));
    OFSDP_RETURN_IF_ERROR(write_values(output));
    if (options_.inference) {
      OFSDP_RETURN_IF_ERROR(make_inference_model(output.model_temporary()).with_prefix(path));
    }
    OFSDP_RETURN_IF_ERROR(output.finish());
    return output.commit();
  }

 private:
  Status write_values(ModelOutput& output) {
    std::vector<float> chunk(static_cast<size_t>(kChunk));
    const auto& weights = model_.initializers();
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::string& name = weights[i].name;
      if (!kinds_.contains(name) && !adapters_.contains(name)) continue;
      const int64_t numel = weights[i].shape.numel();
      for (int64_t at = 0; at < numel; at += kChunk) {
        const auto part = std::span(chunk).first(static_cast<size_t>(std::min(kChunk, numel - at)));
        OFSDP_RETURN_IF_ERROR(read(weights[i], at, part));
        OFSDP_RETURN_IF_ERROR(output.write(i, at, part));
      }
    }
    return ok_status();
  }

  // Scales that were trained change the integers of their weights.
  Status rescale(ModelOutput& output) {
    NamedScales changed;
    for (const Initializer& weight : model_.initializers()) {
      if (weight.quantization == nullptr) continue;
      std::vector<std::string> names = weight.quantization->factors;
      names.push_back(weight.quantization->scale);
      for (const std::string& name : names) {
        if (!kinds_.contains(name) || changed.contains(name)) continue;
        const Initializer& scale = *model_.find_constant(name);
        std::vector<float> values(static_cast<size_t>(scale.shape.numel()));
        OFSDP_RETURN_IF_ERROR(read(scale, 0, values));
        changed[name] = std::move(values);
      }
    }
    OFSDP_ASSIGN_OR_RETURN(const auto rescaled, model_.rescaled(changed));
    output.rescale(rescaled);
    for (const auto& [index, scales] : rescaled) {
      const Quantization& q = *model_.initializers()[static_cast<size_t>(index)].quantization;
      const auto follower = std::ranges::find(model_.initializers(), q.scale, &Initializer::name);
      if (q.factors.empty() || follower == model_.initializers().end()) continue;
      const auto place = static_cast<size_t>(follower - model_.initializers().begin());
      OFSDP_RETURN_IF_ERROR(output.write(place, 0, scales));
    }
    return ok_status();
  }

  Status read(const Initializer& weight, int64_t first, std::span<float> dst) {
    const auto found = kinds_.find(weight.name);
    if (found == kinds_.end()) {
      OFSDP_RETURN_IF_ERROR(model_.read(weight, first, dst));
      return merge(weight, first, dst);
    }
    if (found->second == kParameterKind) {
      return checkpoint_.read(kParameterKind, weight.name, first, dst);
    }
    std::vector<float> all(static_cast<size_t>(weight.shape.numel()));
    OFSDP_RETURN_IF_ERROR(checkpoint_.read_statistic(weight.name, 0, all));
    std::copy_n(all.begin() + first, dst.size(), dst.begin());
    return ok_status();
  }

  // Adds what the weight's adapter says, if it has one.
  Status merge(const Initializer& weight, int64_t first, std::span<float> dst) {
    const auto found = adapters_.find(weight.name);
    if (found == adapters_.end()) return ok_status();
    if (merged_ != weight.name) {
      OFSDP_ASSIGN_OR_RETURN(
          AdapterMerge merge,
          AdapterMerge::make(*found->second, [&](const std::string& name, std::span<float> all) {
            return checkpoint_.read(kParameterKind, name, 0, all);
          }));
      merge_.emplace(std::move(merge));
      merged_ = weight.name;
    }
    merge_->add_to(first, dst);
    return ok_status();
  }

  const Options& options_;
  CheckpointReader& checkpoint_;
  const OnnxFile& model_;
  std::map<std::string, std::string> kinds_;
  std::map<std::string, const Adapter*> adapters_;  // by weight
  std::string merged_;                              // the weight that merge_ is of
  std::optional<AdapterMerge> merge_;
};

// Rounding to 16 bits is a difference, too; only files of float32 have to agree.
bool is_float32(const OnnxFile& model) {
  return std::ranges::all_of(model.initializers(),
                             [](const Initializer& w) { return w.dtype == DType::kFloat32; });
}

Status verify(const Options& options, CheckpointReader& checkpoint, const OnnxFile& model,
              const Registry& registry) {
  const std::string& path = options.files.output;
  // A full checkpoint has a model that is trained already; the one it began with says more.
  const std::string& before = checkpoint.manifest().model;
  Result<OnnxFile> input = OnnxFile::open(before);
  const bool there = input.ok() && graph_hash(*input) == checkpoint.manifest().graph;
  OFSDP_ASSIGN_OR_RETURN(const ForwardDifference d,
                         compare_forwards(there ? *input : model, path, checkpoint, registry));
  print_lines(stdout,
              format_text("verify: outputs of the trained state up to {:g}; largest difference of "
                          "{} to it {:g}, of the input file {:g}\n",
                          d.magnitude, path, d.exported, d.input));
  if (!is_float32(model) || d.exported <= kVerified * d.magnitude) return ok_status();
  return fault("{}: its outputs differ from those of the trained state by {}, expected at most {}",
               path, d.exported, kVerified * d.magnitude);
}

Status check_options(const Options& options) {
  if (options.files.output.empty()) {
    return input_error("fsdp-run export: expected -o FILE, found none");
  }
  const bool safetensors = options.format == "safetensors";
  if (safetensors && (options.inference || options.verify)) {
    return input_error("{} has no effect with --format safetensors",
                       options.inference ? "--inference" : "--verify");
  }
  return ok_status();
}

}  // namespace

Status export_checkpoint(const Options& options, const Registry& registry) {
  OFSDP_RETURN_IF_ERROR(check_options(options));
  OFSDP_ASSIGN_OR_RETURN(CheckpointReader checkpoint, open_checkpoint(options.model));
  OFSDP_ASSIGN_OR_RETURN(const EditedModel model, open_model(checkpoint));
  OFSDP_RETURN_IF_ERROR(check_mergeable(model.adapters, "export -o " + options.files.output));
  OFSDP_REJECT_IF(options.verify && !checkpoint.manifest().edits.empty(),
                  "--verify: expected a checkpoint of the model as its file has it, found one of "
                  "a run with --lora, --replace-head or --untie");
  OFSDP_RETURN_IF_ERROR(Exporter(options, checkpoint, model).write());
  print_lines(stdout, format_text("wrote {} from {}, step {}\n", options.files.output,
                                  checkpoint.folder(), checkpoint.manifest().step));
  return options.verify ? verify(options, checkpoint, *model.base, registry) : ok_status();
}

}  // namespace ofsdp::runtime
