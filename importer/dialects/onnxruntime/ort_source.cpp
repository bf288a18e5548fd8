
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/file/wire.h"
#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "importer/write/model_copy.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// --- the eval model ---

constexpr int64_t kMaxModel = (int64_t{1} << 31) - 1;  // protobuf's limit

// An eval model as a file with the checkpoint's weights inside: text up to the first weight, then a
// head and bytes for each.
struct OrtEvalModel {
  std::string head;
  std::vector<std::pair<std::string, OrtTensor>>
      tensors;  // each weight's head, and where the weight goes
};

std::string tensor_head(const OrtTensor& tensor) {
  std::string head;
  for (const int64_t axis : tensor.shape.axes()) append_int(head, tensor_field::kDims, axis);
  append_int(head, tensor_field::kDataType, tensor.onnx_type);
  append_bytes(head, tensor_field::kName, tensor.name);
  append_tag(head, tensor_field::kRawData, WireType::kBytes);
  append_varint(head, static_cast<uint64_t>(tensor.bytes));
  std::string field;
  append_tag(field, graph_field::kInitializer, WireType::kBytes);
  append_varint(field, head.size() + static_cast<uint64_t>(tensor.bytes));
  return field + head;
}

// `path`: a model with the checkpoint's weights.
Result<OrtEvalModel> lay_out_eval_model(const std::string& path, const OrtCheckpoint& checkpoint) {
  OrtEvalModel made;
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  OFSDP_ASSIGN_OR_RETURN(onnx::ModelProto model, parse_model(file));
  std::set<std::string> weights;
  onnx::GraphProto graph = model.graph();
  graph.clear_input();
  graph.clear_initializer();
  for (const auto& value : model.graph().input()) {
    const OrtTensor* tensor = checkpoint.tensor(value.name());
    if (tensor == nullptr) {
      *graph.add_input() = value;
    } else {
      weights.insert(value.name());
    }
  }
  // A model that an earlier run wrote has the weights inside: small ones are initializers here.
  for (const auto& tensor : model.graph().initializer()) {
    if (checkpoint.tensor(tensor.name()) == nullptr) {
      *graph.add_initializer() = tensor;
    } else {
      weights.insert(tensor.name());
    }
  }
  for (const auto* list : {&checkpoint.trained, &checkpoint.frozen}) {
    for (const OrtTensor& tensor : *list) {
      if (weights.contains(tensor.name)) made.tensors.emplace_back(tensor_head(tensor), tensor);
    }
  }
  const std::string body = graph.SerializeAsString();
  uint64_t bytes = body.size();
  for (const auto& [head, tensor] : made.tensors) {
    bytes += head.size() + static_cast<uint64_t>(tensor.bytes);
  }
  model.clear_graph();
  made.head = model.SerializeAsString();
  append_tag(made.head, model_field::kGraph, WireType::kBytes);
  append_varint(made.head, bytes);
  OFSDP_REJECT_IF(bytes + made.head.size() > static_cast<uint64_t>(kMaxModel),
                  "{} with its weights inside has {} bytes: expected at most {}", path,
                  bytes + made.head.size(), kMaxModel);
  made.head += body;
  auto at = static_cast<int64_t>(made.head.size());
  for (auto& [head, tensor] : made.tensors) {
    tensor.offset = at + static_cast<int64_t>(head.size());
    at = tensor.offset + tensor.bytes;
  }
  return made;
}

std::string module_eval_name(const OrtPaths& paths) {
  return "module_" + base_filename(paths.eval);
}

std::vector<std::string> output_names(const OrtPaths& paths) {
  std::vector<std::string> names{base_filename(paths.training), base_filename(paths.checkpoint)};
  if (!paths.eval.empty()) {
    names.insert(names.end(), {base_filename(paths.eval), module_eval_name(paths)});
  }
  if (!paths.optimizer.empty()) names.push_back(base_filename(paths.optimizer));
  return names;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<OpenFile> create_file(const std::string& path) {
  {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() < 0) return fault("{}: cannot be written: {}", path, std::strerror(errno));
  }
  return open_for_writing(path);
}

Status write_text(const OpenFile& file, int64_t offset, std::string_view text) {
  return write_exactly(file, offset, std::as_bytes(std::span(text)));
}

Status copy_file(const std::string& from, const std::string& to) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile source, open_for_reading(from));
  OFSDP_ASSIGN_OR_RETURN(const OpenFile target, create_file(to));
  return copy_bytes(source, 0, target, 0, source.bytes);
}

// Returns the checkpoint to write; the tensors have no offsets yet.
OrtCheckpoint trained_checkpoint(const OrtCheckpoint& source, const TrainedState& state) {
  OrtCheckpoint made = source;
  if (state.states == 0) return made;
  OrtOptimizerState optimizer;
  optimizer.group = source.optimizer ? source.optimizer->group : "group0";
  optimizer.step = state.step;
  optimizer.learning_rate = state.learning_rate;
  for (const OrtTensor& tensor : source.trained) {
    OrtParameterState moments{tensor.name, {}};
    for (size_t k = 0; k < state.states; ++k) {
      OrtTensor moment = tensor;
      moment.name = format_text("momentum{}", k);
      moments.moments.push_back(std::move(moment));
    }
    optimizer.parameters.push_back(std::move(moments));
  }
  made.optimizer = std::move(optimizer);
  return made;
}

// --- the folder ---

class OrtOutput final : public TrainedOutput {
 public:
  OrtOutput(const OrtArtifacts& artifacts, const OnnxFile& weights)
      : artifacts_(artifacts), paths_(artifacts.paths), weights_(weights) {}
  OrtOutput(OrtOutput&&) = delete;
  ~OrtOutput() override {
    std::error_code ignored;
    if (owner_) std::filesystem::remove_all(temporary_, ignored);
  }

  Status lay_out(TrainedState state) {
    // Without an optimizer model nobody could read another optimizer's states.
    if (paths_.optimizer.empty()) state.states = 0;
    states_ = state.states;
    checkpoint_ = trained_checkpoint(artifacts_.checkpoint, state);
    OFSDP_ASSIGN_OR_RETURN(head_, describe_ort_checkpoint(checkpoint_));
    if (paths_.eval.empty()) return {};
    OFSDP_ASSIGN_OR_RETURN(eval_, lay_out_eval_model(paths_.eval, artifacts_.checkpoint));
    return {};
  }

  // Rank 0: makes a folder next to the target and copies all files there.
  Status begin(const std::string& path) {
    target_ = without_slash(path);
    OFSDP_RETURN_IF_ERROR(check_output_folder(target_, output_names(paths_)));
    OFSDP_ASSIGN_OR_RETURN(temporary_, create_temporary_folder(target_));
    owner_ = true;
    return write_files();
  }
  void join(const std::string& ticket) { temporary_ = ticket; }

  std::string ticket() const override { return temporary_; }

  Status write(const Parameter& p, int64_t first, std::span<const float> src) const override {
    const OrtTensor* tensor = checkpoint_.tensor(p.name);
    OFSDP_REJECT_IF(tensor == nullptr, "{}: is not in the checkpoint", p.name);
    OFSDP_RETURN_IF_ERROR(write_elements(paths_.checkpoint, *tensor, first, src));
    for (const auto& [head, place] : eval_.tensors) {
      if (place.name == p.name) return write_elements(paths_.eval, place, first, src);
    }
    return {};
  }

  Status write_state(const Parameter& p, size_t k, int64_t first,
                     std::span<const float> src) const override {
    if (k >= states_) return {};
    const OrtParameterState* state = checkpoint_.state_of(p.name);
    OFSDP_REJECT_IF(state == nullptr || k >= state->moments.size(), "{}: has no state", p.name);
    return write_elements(paths_.checkpoint, state->moments[k], first, src);
  }

  Status finish() const override {
    for (const std::string& name : output_names(paths_)) {
      OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(join_path(temporary_, name)));
      OFSDP_RETURN_IF_ERROR(sync_file(file));
    }
    return sync_folder(temporary_);
  }

  Status commit() override {
    OFSDP_CHECK(owner_, "commit of a folder that is not this rank's");
    OFSDP_RETURN_IF_ERROR(replace_folder(temporary_, target_));
    owner_ = false;
    return {};
  }

 private:
  std::string in_temporary(const std::string& path) const {
    return join_path(temporary_, base_filename(path));
  }

  Status write_elements(const std::string& path, const OrtTensor& place, int64_t first,
                        std::span<const float> src) const {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(in_temporary(path)));
    return write_values(file, as_initializer(place), first, src);
  }

  Status write_files() const {
    OFSDP_RETURN_IF_ERROR(copy_file(paths_.training, in_temporary(paths_.training)));
    if (!paths_.optimizer.empty()) {
      OFSDP_RETURN_IF_ERROR(copy_file(paths_.optimizer, in_temporary(paths_.optimizer)));
    }
    OFSDP_RETURN_IF_ERROR(write_checkpoint());
    if (paths_.eval.empty()) return {};
    const std::string folder = parent_folder(paths_.eval);
    const std::string before =
        join_path(folder, module_eval_name(paths_));  // from an earlier output
    std::error_code ignored;
    const bool again = std::filesystem::is_regular_file(before, ignored);
    OFSDP_RETURN_IF_ERROR(
        copy_file(again ? before : paths_.eval, join_path(temporary_, module_eval_name(paths_))));
    return write_eval();
  }

  // Copies all values; the trained ones are overwritten later.
  Status write_checkpoint() const {
    const OpenFile& from = weights_.contents().data_files.back().file;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile to, create_file(in_temporary(paths_.checkpoint)));
    OFSDP_RETURN_IF_ERROR(write_text(to, 0, head_));
    int64_t end = static_cast<int64_t>(head_.size());
    const auto copy = [&](const OrtTensor& tensor, const OrtTensor* old) -> Status {
      const auto length = static_cast<uint32_t>(tensor.bytes);
      OFSDP_RETURN_IF_ERROR(
          write_exactly(to, tensor.offset - 4, std::as_bytes(std::span(&length, 1))));
      end = std::max(end, tensor.offset + tensor.bytes);
      if (old == nullptr || old->bytes != tensor.bytes) return ok_status();
      return copy_bytes(from, old->offset, to, tensor.offset, tensor.bytes);
    };
    const OrtCheckpoint& before = artifacts_.checkpoint;
    for (const auto* list : {&checkpoint_.trained, &checkpoint_.frozen}) {
      for (const OrtTensor& tensor : *list) {
        OFSDP_RETURN_IF_ERROR(copy(tensor, before.tensor(tensor.name)));
      }
    }
    if (checkpoint_.optimizer) {
      for (const OrtParameterState& state : checkpoint_.optimizer->parameters) {
        const OrtParameterState* old = before.state_of(state.parameter);
        for (size_t k = 0; k < state.moments.size(); ++k) {
          const bool there = old != nullptr && k < old->moments.size();
          OFSDP_RETURN_IF_ERROR(copy(state.moments[k], there ? &old->moments[k] : nullptr));
        }
      }
    }
    if (ftruncate(to.fd.get(), end) == 0) return ok_status();  // zero states at the end
    return fault("{}: cannot be written: {}", to.path, std::strerror(errno));
  }

  Status write_eval() const {
    const OpenFile& from = weights_.contents().data_files.back().file;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile to, create_file(in_temporary(paths_.eval)));
    OFSDP_RETURN_IF_ERROR(write_text(to, 0, eval_.head));
    for (const auto& [head, tensor] : eval_.tensors) {
      const OrtTensor* old = artifacts_.checkpoint.tensor(tensor.name);
      OFSDP_RETURN_IF_ERROR(
          write_text(to, tensor.offset - static_cast<int64_t>(head.size()), head));
      OFSDP_RETURN_IF_ERROR(copy_bytes(from, old->offset, to, tensor.offset, tensor.bytes));
    }
    return ok_status();
  }

  const OrtArtifacts& artifacts_;
  const OrtPaths& paths_;
  const OnnxFile& weights_;   // the source's file
  OrtCheckpoint checkpoint_;  // to write
  std::string head_;          // the checkpoint file's
  OrtEvalModel eval_;
  size_t states_ = 0;  // per parameter, to write
  std::string target_, temporary_;
  bool owner_ = false;  // rank 0, until it has committed
};

// --- the source ---

// Turns the imported training model into a graph that brings its own backward: gradients of
// parameters, and a term of the loss with the weight where backward starts, so a micro-batch counts
// with its share of the global batch.
Status take_backward(const OrtArtifacts& artifacts, Graph& graph) {
  std::map<std::string, ValueId> ids;
  for (size_t id = 1; id < graph.values.size(); ++id) {
    ids[graph.values[id].name] = static_cast<ValueId>(id);
  }
  const auto seed = ids.find(artifacts.seed);
  OFSDP_REJECT_IF(seed == ids.end(), "{}: has no '{}'", graph.file, printable(artifacts.seed));
  graph.terms = {{.weight = seed->second}};
  graph.value(seed->second).kind = ValueKind::kLossWeight;
  std::erase(graph.inputs, seed->second);
  std::set<ValueId> gradients;
  for (const OrtGradient& gradient : artifacts.gradients) {
    const auto parameter =
        std::ranges::find(graph.parameters, gradient.parameter, &Parameter::name);
    const auto value = ids.find(gradient.value);
    OFSDP_REJECT_IF(parameter == graph.parameters.end() || value == ids.end(),
                    "{}: expected '{}' and its gradient", graph.file,
                    printable(gradient.parameter));
    gradients.insert(parameter->gradient = value->second);
  }
  std::erase_if(graph.outputs, [&](ValueId id) { return gradients.contains(id); });
  mark_gradient_sums(graph, ids);
  return ok_status();
}

class OrtSource final : public TrainingSource {
 public:
  OrtSource(OrtArtifacts artifacts, Graph symbolic, const Lowering* lowering)
      : TrainingSource(std::move(artifacts.training), std::move(symbolic), lowering),
        artifacts_(std::move(artifacts)) {}

  int64_t steps_done() const override {
    return artifacts_.checkpoint.optimizer ? artifacts_.checkpoint.optimizer->step : 0;
  }

  Status load_state(const Parameter& p, size_t k, int64_t first,
                    std::span<float> dst) const override {
    const OrtParameterState* state = artifacts_.checkpoint.state_of(p.name);
    if (state == nullptr || state->moments.size() <= k) return {};
    const OrtTensor& t = state->moments[k];
    const int last = static_cast<int>(file().contents().data_files.size());  // the checkpoint
    const Initializer place = as_initializer(t, last);
    const int64_t numel = symbolic().value(p.value).desc.numel();
    OFSDP_REJECT_IF(!is_floating(place.dtype) || t.shape.numel() != numel,
                    "{}: '{}' of '{}': expected {} floats, found {} of ONNX type {}",
                    artifacts_.paths.checkpoint, t.name, p.name, numel, t.shape.text(),
                    t.onnx_type);
    return file().read(place, first, dst);
  }

  Status check_output(const std::string& path, const TrainedState& state) const override {
    const OrtPaths& paths = artifacts_.paths;
    OFSDP_REJECT_IF(state.inference,
                    "--output-form inference: expected same, since training artifacts are written "
                    "as training artifacts");
    std::error_code ignored;
    OFSDP_REJECT_IF(std::filesystem::equivalent(parent_folder(paths.training), path, ignored),
                    "{}: cannot be written: expected another folder than the input", path);
    OFSDP_RETURN_IF_ERROR(check_output_folder(without_slash(path), output_names(paths)));
    return laid_out(state).status().with_prefix("--output " + path);
  }

  Result<std::unique_ptr<TrainedOutput>> begin_output(const std::string& path,
                                                      const TrainedState& state) const override {
    OFSDP_ASSIGN_OR_RETURN(auto output, laid_out(state));
    OFSDP_RETURN_IF_ERROR(output->begin(path));
    return std::unique_ptr<TrainedOutput>(std::move(output));
  }

  Result<std::unique_ptr<TrainedOutput>> join_output(const std::string& ticket,
                                                     const TrainedState& state) const override {
    OFSDP_ASSIGN_OR_RETURN(auto output, laid_out(state));
    output->join(ticket);
    return std::unique_ptr<TrainedOutput>(std::move(output));
  }

 private:
  Result<std::unique_ptr<OrtOutput>> laid_out(const TrainedState& state) const {
    auto output = std::make_unique<OrtOutput>(artifacts_, file());
    OFSDP_RETURN_IF_ERROR(output->lay_out(state));
    return output;
  }

  const OrtArtifacts artifacts_;  // `training` has moved into file()
};

}  // namespace

Result<std::unique_ptr<TrainingSource>> open_ort_source(const std::string& folder,
                                                        const Operators& operators) {
  OFSDP_ASSIGN_OR_RETURN(OrtArtifacts artifacts, OrtArtifacts::open(folder));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, import_onnx(artifacts.training, operators));
  OFSDP_RETURN_IF_ERROR(take_backward(artifacts, graph));
  std::set<std::string> trained;
  for (const OrtTensor& tensor : artifacts.checkpoint.trained) trained.insert(tensor.name);
  return std::unique_ptr<TrainingSource>(std::make_unique<OrtSource>(
      std::move(artifacts), choose_given(graph, trained), operators.lowering));
}

}  // namespace ofsdp::importer
