#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/comm/communicator.h"
#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/edit/model_edits.h"
#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "importer/write/model_output.h"
#include "importer/write/state_dict.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/engine/forward.h"
#include "runtime/engine/update_table.h"
#include "runtime/train/setup/checkpoint_values.h"
#include "runtime/train/setup/class_names.h"
#include "runtime/train/setup/data_setup.h"
#include "runtime/train/setup/run_files.h"

namespace ofsdp::runtime {

namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kSymbolic = 16;  // for axes that the model leaves open

using Outputs = std::map<std::string, std::vector<float>>;
using ReadTensor = std::function<Status(const std::string& name, std::span<float> dst)>;

// Returns a sample's shape for each input; axes with the same symbol get the same size.
std::map<std::string, Shape> made_up_rows(const Graph& graph) {
  std::map<std::string, Shape> rows;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    std::vector<int64_t> axes;
    for (size_t i = 1; i < input.declared.size(); ++i) {
      axes.push_back(input.declared[i].size < 0 ? kSymbolic : input.declared[i].size);
    }
    rows[input.name] = Shape(std::move(axes));
  }
  return rows;
}

// Returns a file's graph for one batch, training switches off.
Result<Graph> inference_graph(const OnnxFile& file, const Manifest& manifest,
                              const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const Graph imported, import_onnx(file, {registry, &ort_operators()}));
  TrainedRules rules;  // values that may differ from the file must stay parameters
  for (const NamedTensor& t : manifest.trained) rules.train.push_back(t.name);
  for (const NamedTensor& t : manifest.statistics) rules.train.push_back(t.name);
  OFSDP_ASSIGN_OR_RETURN(const Graph chosen, choose_candidates(imported, rules));
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, with_samples_first(chosen, {}));
  const int64_t fixed = fixed_batch(graph);
  OFSDP_ASSIGN_OR_RETURN(const auto shapes,
                         bind_inputs(graph, made_up_rows(graph), fixed > 0 ? fixed : kBatch));
  return specialize(graph, shapes, Mode::kEval, &ort_operators());
}

Status feed_inputs(const Graph& graph, Feeds& feeds) {
  DataSetup data;
  data.spec.synthetic = true;
  OFSDP_RETURN_IF_ERROR(bind_data(data, graph, 0, {}, {}));
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const TensorDesc& desc = graph.value(graph.inputs[i]).desc;
    std::vector<int64_t> samples(static_cast<size_t>(desc.shape[0]));
    std::iota(samples.begin(), samples.end(), 0);
    auto& bytes = feeds[graph.inputs[i]];
    bytes.resize(desc.bytes());
    OFSDP_RETURN_IF_ERROR(data.synthetic->read_rows(static_cast<int>(i), samples, bytes.data()));
  }
  return ok_status();
}

// `file` is the graph's; weights that nodes read as stored come from it.
Result<Outputs> outputs_of(const Graph& graph, const OnnxFile& file, const ReadTensor& read) {
  Feeds feeds;
  OFSDP_RETURN_IF_ERROR(feed_inputs(graph, feeds));
  for (const Parameter& p : graph.parameters) {
    if (graph.value(p.value).kind != ValueKind::kParameter) continue;
    auto& bytes = feeds[p.value];
    bytes.resize(graph.value(p.value).desc.bytes());
    if (p.raw) {
      const auto index = static_cast<size_t>(p.initializer);
      OFSDP_RETURN_IF_ERROR(file.read_raw(file.initializers()[index], 0, bytes));
      continue;
    }
    std::vector<float> values(bytes.size() / sizeof(float));
    OFSDP_RETURN_IF_ERROR(read(p.name, values));
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return run_forward(graph, std::move(feeds));
}

ReadTensor reader_of(const OnnxFile& file) {
  return [&file](const std::string& name, std::span<float> dst) -> Status {
    const auto& all = file.initializers();
    const auto found = std::ranges::find(all, name, &Initializer::name);
    if (found == all.end()) return input_error("{}: no initializer '{}'", file.path(), name);
    return file.read(*found, 0, dst);
  };
}

double largest_difference(const Outputs& a, const Outputs& b) {
  double largest = 0;
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != values.size()) return HUGE_VAL;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(static_cast<double>(values[i]) - found->second[i]);
      largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace

Result<ForwardSample> sample_forward(const OnnxFile& file, const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, inference_graph(file, Manifest{}, registry));
  ForwardSample sample;
  Feeds feeds;
  OFSDP_RETURN_IF_ERROR(feed_inputs(graph, feeds));
  for (const ValueId id : graph.inputs) {
    sample.inputs.push_back({graph.value(id).name, graph.value(id).desc, feeds.at(id)});
  }
  OFSDP_ASSIGN_OR_RETURN(sample.outputs, outputs_of(graph, file, reader_of(file)));
  return sample;
}

// For OnnxFile::open: the file's Constant nodes among them are weights.
std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

Result<ForwardDifference> compare_forwards(const OnnxFile& input, const std::string& exported,
                                           CheckpointReader& checkpoint, const std::string& kind,
                                           const Registry& registry) {
  const Manifest& manifest = checkpoint.manifest();
  std::set<std::string> trained, statistics;
  for (const NamedTensor& t : manifest.trained) trained.insert(t.name);
  for (const NamedTensor& t : manifest.statistics) statistics.insert(t.name);
  const ReadTensor from_input = reader_of(input);
  const ReadTensor from_state = [&](const std::string& name, std::span<float> dst) -> Status {
    if (trained.contains(name)) return checkpoint.read(kind, name, 0, dst);
    if (statistics.contains(name)) return checkpoint.read_statistic(name, 0, dst);
    return from_input(name, dst);
  };
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(exported, names_of(manifest.trained)));
  OFSDP_ASSIGN_OR_RETURN(const Graph old_graph, inference_graph(input, manifest, registry));
  OFSDP_ASSIGN_OR_RETURN(const Graph new_graph, inference_graph(file, manifest, registry));
  OFSDP_ASSIGN_OR_RETURN(const Outputs state, outputs_of(old_graph, input, from_state));
  OFSDP_ASSIGN_OR_RETURN(const Outputs after, outputs_of(new_graph, file, reader_of(file)));
  OFSDP_ASSIGN_OR_RETURN(const Outputs before, outputs_of(old_graph, input, from_input));
  ForwardDifference difference{.exported = largest_difference(state, after),
                               .input = largest_difference(state, before)};
  for (const auto& [name, values] : state) {
    for (const float v : values) {
      difference.magnitude = std::max(difference.magnitude, static_cast<double>(std::abs(v)));
    }
  }
  return difference;
}

namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // elements
constexpr double kVerified = 1e-5;            // relative to the largest output

// Opens CKPT_DIR itself, or the latest checkpoint in it that opens.
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

// Opens the file from which the checkpoint was trained, with the run's edits.
Result<EditedModel> open_model(const CheckpointReader& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  const std::string folder = absolute_path(checkpoint.folder());
  const std::string name = base_filename(m.model);
  std::vector<std::string> places;
  if (m.type == "full") places.push_back(join_path(folder, "model.onnx"));
  places.push_back(m.model);
  places.push_back(join_path(parent_folder(folder), name));
  places.push_back(join_path(parent_folder(parent_folder(folder)), name));
  OFSDP_ASSIGN_OR_RETURN(const ModelEdits edits,
                         prefixed(checkpoint.folder(), edits_from(m.edits)));
  std::vector<std::string> weights = names_of(m.trained);
  std::ranges::copy(edits.adapters.patterns, std::back_inserter(weights));
  for (const std::string& place : places) {
    if (!is_file(place)) continue;
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(place, weights));
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
      : options_(options),
        checkpoint_(checkpoint),
        whole_model_(model),
        model_(*model.base),
        edited_(model.file) {
    for (const Adapter& adapter : model.adapters) adapters_[adapter.weight] = &adapter;
    const std::string kind = weights_kind(checkpoint.manifest(), options.optimizer.ema_use);
    for (const NamedTensor& t : checkpoint.manifest().trained) kinds_[t.name] = kind;
    for (const NamedTensor& t : checkpoint.manifest().statistics) kinds_[t.name] = kStatisticKind;
  }

  // Writes --adapter.
  Status write_adapter_file() {
    OFSDP_REJECT_IF(adapters_.empty(), "--adapter {}: expected a checkpoint of a run with --lora",
                    options_.edit.adapter);
    const std::string& path = options_.edit.adapter;
    make_adapter_folder(path);
    const bool takes = holds_whole_weights(path, !options_.files.output.empty());
    std::vector<std::string> whole = takes ? whole_model_.taken : std::vector<std::string>();
    for (const auto& [name, kind] : kinds_) {
      if (!takes) break;
      const bool adapter = is_adapter_weight(name);
      if (!adapter && std::ranges::find(whole, name) == whole.end()) whole.push_back(name);
    }
    std::ranges::sort(whole);
    return write_adapter(
        whole_model_, whole, path, [this](const std::string& name, std::span<float> all) -> Status {
          const auto found = std::ranges::find(model_.initializers(), name, &Initializer::name);
          return found == model_.initializers().end() ? read_adapter(name, all)
                                                      : read(*found, 0, all);
        });
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

  // If scales were trained, their weights' integers change.
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
    if (found->second != kStatisticKind) {
      return checkpoint_.read(found->second, weight.name, first, dst);
    }
    std::vector<float> all(static_cast<size_t>(weight.shape.numel()));
    OFSDP_RETURN_IF_ERROR(checkpoint_.read_statistic(weight.name, 0, all));
    std::copy_n(all.begin() + first, dst.size(), dst.begin());
    return ok_status();
  }

  // An adapter that is frozen, or that no loss reaches, has its first values.
  Status read_adapter(const std::string& name, std::span<float> all) {
    if (kinds_.contains(name)) return checkpoint_.read(kinds_.at(name), name, 0, all);
    const auto found = std::ranges::find(edited_.initializers(), name, &Initializer::name);
    OFSDP_CHECK(found != edited_.initializers().end(), "no adapter '{}'", name);
    return edited_.read(*found, 0, all);
  }

  // Adds the weight's adapter product, if there is one.
  Status merge(const Initializer& weight, int64_t first, std::span<float> dst) {
    const auto found = adapters_.find(weight.name);
    if (found == adapters_.end()) return ok_status();
    if (merged_ != weight.name) {
      OFSDP_ASSIGN_OR_RETURN(
          AdapterMerge merge,
          AdapterMerge::make(*found->second, [&](const std::string& name, std::span<float> all) {
            return read_adapter(name, all);
          }));
      merge_.emplace(std::move(merge));
      merged_ = weight.name;
    }
    merge_->add_to(first, dst);
    return ok_status();
  }

  const Options& options_;
  CheckpointReader& checkpoint_;
  const EditedModel& whole_model_;
  const OnnxFile& model_;
  const OnnxFile& edited_;  // with the adapters
  std::map<std::string, std::string> kinds_;
  std::map<std::string, const Adapter*> adapters_;  // by weight
  std::string merged_;                              // the weight for which merge_ is set
  std::optional<AdapterMerge> merge_;
};

// Rounding to 16 bits changes values, so only float32 files must agree.
bool is_float32(const OnnxFile& model) {
  return std::ranges::all_of(model.initializers(),
                             [](const Initializer& w) { return w.dtype == DType::kFloat32; });
}

std::string kind_of(const Options& options, const CheckpointReader& checkpoint) {
  return weights_kind(checkpoint.manifest(), options.optimizer.ema_use);
}

Status verify(const Options& options, CheckpointReader& checkpoint, const OnnxFile& model,
              const Registry& registry) {
  const std::string& path = options.files.output;
  // The model in a full checkpoint is trained already; the original one says more.
  const std::string& before = checkpoint.manifest().model;
  Result<OnnxFile> input = OnnxFile::open(before, names_of(checkpoint.manifest().trained));
  const bool there = input.ok() && graph_hash(*input) == checkpoint.manifest().graph;
  OFSDP_ASSIGN_OR_RETURN(const ForwardDifference d,
                         compare_forwards(there ? *input : model, path, checkpoint,
                                          kind_of(options, checkpoint), registry));
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
    const char* const idle = options.inference         ? "--inference"
                             : options.verify          ? "--verify"
                             : !options.format.empty() ? "--format"
                                                       : nullptr;
    if (options.edit.adapter.empty() || idle != nullptr) {
      return input_error("fsdp-run export: expected -o FILE{}, found none",
                         idle != nullptr ? format_text(" beside {}", idle) : "");
    }
    return ok_status();
  }
  const std::string& output = options.files.output;
  const bool safetensors = options.format == "safetensors";
  OFSDP_REJECT_IF(safetensors != output.ends_with(".safetensors") &&
                      (!safetensors || output.ends_with(".onnx")),
                  "-o {}: expected a file {} with --format {}", output,
                  safetensors ? ".safetensors" : ".onnx", options.format);
  if (!safetensors) OFSDP_RETURN_IF_ERROR(check_kind_of_output(output));
  if (safetensors && (options.inference || options.verify)) {
    return input_error("{} has no effect with --format safetensors",
                       options.inference ? "--inference" : "--verify");
  }
  return ok_status();
}

std::string wrote_line(const std::string& path, const Options& options,
                       const CheckpointReader& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  const bool kept = std::ranges::count(m.states, kAverageState) > 0;
  const bool averaged = kind_of(options, checkpoint) == kAverageState;
  return format_text("wrote {} from {}, step {}{}\n", path, checkpoint.folder(), m.step,
                     !kept      ? ""
                     : averaged ? ", the average of --ema"
                                : ", the weights without the average of --ema");
}

// Writes the parameter as the checkpoint has it, with its optimizer states.
Status write_parameter(const Parameter& p, int64_t numel, const std::string& kind,
                       CheckpointReader& checkpoint, const TrainedOutput& output) {
  std::vector<float> chunk(static_cast<size_t>(std::min(kChunk, numel)));
  std::vector<std::string> states = checkpoint.manifest().states;
  std::erase(states, kAverageState);  // the artifacts have no place for it
  for (int64_t at = 0; at < numel; at += kChunk) {
    const auto part = std::span(chunk).first(static_cast<size_t>(std::min(kChunk, numel - at)));
    OFSDP_RETURN_IF_ERROR(checkpoint.read(kind, p.name, at, part));
    OFSDP_RETURN_IF_ERROR(output.write(p, at, part));
    for (size_t k = 0; k < states.size(); ++k) {
      OFSDP_RETURN_IF_ERROR(checkpoint.read(states[k], p.name, at, part));
      OFSDP_RETURN_IF_ERROR(output.write_state(p, k, at, part));
    }
  }
  return ok_status();
}

// Writes a checkpoint of a run on ONNX Runtime's training artifacts as such a folder.
Status export_artifacts(const Options& options, CheckpointReader& checkpoint,
                        const std::string& folder, const Registry& registry) {
  const Manifest& m = checkpoint.manifest();
  const std::string& path = options.files.output;
  const char* const flag = options.inference          ? "--inference"
                           : options.verify           ? "--verify"
                           : options.format != "onnx" ? "--format"
                                                      : nullptr;
  OFSDP_REJECT_IF(flag != nullptr,
                  "{}: expected a checkpoint of a plain model, found one of ONNX Runtime's "
                  "artifacts {}; without {}, -o FOLDER gets artifacts",
                  flag, folder, flag);
  OFSDP_REJECT_IF(path.ends_with(".onnx"),
                  "-o {}: expected a folder, as {} has training artifacts; its eval_model.onnx is "
                  "the trained model",
                  path, folder);
  const Operators operators(registry, &ort_operators());
  OFSDP_ASSIGN_OR_RETURN(const auto source, open_ort_source(folder, operators));
  OFSDP_REJECT_IF(graph_hash(source->file()) != m.graph,
                  "{}: expected the artifacts it was trained from (graph {}) in {}, found others",
                  checkpoint.folder(), m.graph, folder);
  const TrainedState trained{source->steps_done() + m.step, static_cast<float>(m.lr),
                             size_t{m.optimizer == "sgd" ? 1u : 2u}};
  OFSDP_RETURN_IF_ERROR(source->check_output(path, trained));
  OFSDP_ASSIGN_OR_RETURN(const auto output, source->begin_output(path, trained));
  for (const Parameter& p : source->symbolic().parameters) {
    const int64_t numel = source->symbolic().value(p.value).desc.numel();
    if (std::ranges::count(m.trained, p.name, &NamedTensor::name) > 0) {
      OFSDP_RETURN_IF_ERROR(
          write_parameter(p, numel, kind_of(options, checkpoint), checkpoint, *output));
    } else if (std::ranges::count(m.statistics, p.name, &NamedTensor::name) > 0) {
      std::vector<float> all(static_cast<size_t>(numel));
      OFSDP_RETURN_IF_ERROR(checkpoint.read_statistic(p.name, 0, all));
      OFSDP_RETURN_IF_ERROR(output->write(p, 0, all));
    }
  }
  OFSDP_RETURN_IF_ERROR(output->finish());
  return output->commit();
}

// Writes the weights of a model file.
Status export_weights(const Options& options) {
  OFSDP_REJECT_IF(options.format != "safetensors",
                  "fsdp-run export: expected a checkpoint, found the file {}; --format safetensors "
                  "writes its weights",
                  options.model);
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(options.model));
  const auto values = [&file](int i, int64_t first, std::span<float> dst) {
    return file.read(file.initializers()[static_cast<size_t>(i)], first, dst);
  };
  OFSDP_RETURN_IF_ERROR(write_safetensors(file, options.files.output, values));
  print_lines(stdout, format_text("wrote {} from {}\n", options.files.output, options.model));
  return ok_status();
}

}  // namespace

Status export_checkpoint(const Options& given, const Registry& registry) {
  Options options = given;
  if (options.format.empty() && !options.files.output.empty()) {  // the ending decides
    options.format = options.files.output.ends_with(".safetensors") ? "safetensors" : "onnx";
  }
  OFSDP_RETURN_IF_ERROR(check_options(options));
  if (is_file(options.model)) return export_weights(options);
  OFSDP_ASSIGN_OR_RETURN(CheckpointReader checkpoint, open_checkpoint(options.model));
  const std::string artifacts = ort_folder_of(checkpoint.manifest().model);
  if (!artifacts.empty()) {
    OFSDP_RETURN_IF_ERROR(export_artifacts(options, checkpoint, artifacts, registry));
    print_lines(stdout, wrote_line(options.files.output, options, checkpoint));
    return {};
  }
  OFSDP_ASSIGN_OR_RETURN(const EditedModel model, open_model(checkpoint));
  if (!options.edit.adapter.empty()) {
    OFSDP_RETURN_IF_ERROR(Exporter(options, checkpoint, model).write_adapter_file());
    print_lines(stdout, wrote_line(options.edit.adapter, options, checkpoint));
  }
  if (options.files.output.empty()) return ok_status();
  OFSDP_RETURN_IF_ERROR(check_mergeable(model.adapters, "export -o " + options.files.output));
  OFSDP_REJECT_IF(options.verify && !checkpoint.manifest().edits.empty(),
                  "--verify: expected a checkpoint of the model as its file has it, found one of "
                  "a run with --lora, --replace-head or --untie");
  OFSDP_RETURN_IF_ERROR(Exporter(options, checkpoint, model).write());
  if (options.format == "onnx") {
    OFSDP_RETURN_IF_ERROR(write_class_names(checkpoint.manifest().classes, options.files.output));
  }
  print_lines(stdout, wrote_line(options.files.output, options, checkpoint));
  return options.verify ? verify(options, checkpoint, *model.base, registry) : ok_status();
}

}  // namespace ofsdp::runtime
