#include "importer/dialects/onnxruntime/ort_artifacts.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "importer/file/file_mapping.h"
#include "importer/file/flat_buffer.h"
#include "importer/file/onnx_file.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kIdentifier = "ODTC";

// Each table's fields; ort_artifacts.h lists them with types.
enum class Root { kVersion, kModule, kGroups, kProperties };
enum class Module { kTrained, kFrozen, kNominal, kExternal };
enum class Group { kName, kStep, kLearningRate, kStates };
enum class State { kParameter, kMoments };
enum class Bag { kInts, kFloats, kStrings };
enum class Property { kName, kValue };
enum class Tensor { kName, kDims = 2, kType, kData, kExternalOffset = 6 };

constexpr int kOldest = 1, kNewest = 2;  // versions
constexpr size_t kMaxMoments = 8;
Result<OrtTensor> read_tensor(const FlatTable& table) {
  OrtTensor tensor;
  OFSDP_ASSIGN_OR_RETURN(tensor.name, table.text(Tensor::kName));
  const std::string subject = "tensor '" + printable(tensor.name) + "'";
  OFSDP_ASSIGN_OR_RETURN(tensor.onnx_type, table.number<int32_t>(Tensor::kType, 0));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, table.integers(Tensor::kDims));
  OFSDP_ASSIGN_OR_RETURN(const int64_t external,
                         table.number<int64_t>(Tensor::kExternalOffset, -1));
  OFSDP_REJECT_IF(external >= 0, "{}: its bytes are in a file of their own, which is not supported",
                  subject);
  const DType dtype = dtype_from_onnx_number(tensor.onnx_type);
  OFSDP_REJECT_IF(dtype == DType::kUndefined, "{}: ONNX type {} is not supported", subject,
                  tensor.onnx_type);
  OFSDP_ASSIGN_OR_RETURN(const int64_t numel, prefixed(subject, checked_numel(dims)));
  tensor.shape = Shape(dims);
  OFSDP_ASSIGN_OR_RETURN(const auto data, table.bytes(Tensor::kData));
  const FlatBytes found = data.value_or(FlatBytes{});
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  OFSDP_REJECT_IF(numel > found.count / element || found.count != numel * element,
                  "{}: expected {} elements of {} bytes, as its shape {} says, found {} bytes",
                  subject, numel, element, tensor.shape.text(), found.count);
  tensor.offset = found.offset;
  tensor.bytes = found.count;
  return tensor;
}

Result<std::vector<OrtTensor>> read_tensors(const FlatTable& table, FlatSlot slot,
                                            std::set<std::string>& names) {
  std::vector<OrtTensor> list;
  OFSDP_ASSIGN_OR_RETURN(const auto tables, table.tables(slot));
  for (const FlatTable& entry : tables) {
    OFSDP_ASSIGN_OR_RETURN(OrtTensor tensor, read_tensor(entry));
    OFSDP_REJECT_IF(!names.insert(tensor.name).second, "tensor '{}' is there twice",
                    printable(tensor.name));
    list.push_back(std::move(tensor));
  }
  return list;
}

Status read_module(const FlatTable& root, OrtCheckpoint& checkpoint) {
  OFSDP_ASSIGN_OR_RETURN(const auto module, root.table(Root::kModule));
  if (!module) return input_error("has no parameters");
  OFSDP_ASSIGN_OR_RETURN(const auto nominal, module->number<uint8_t>(Module::kNominal, 0));
  OFSDP_REJECT_IF(nominal != 0, "is a nominal checkpoint: it has names and shapes, but no values");
  OFSDP_ASSIGN_OR_RETURN(const auto external, module->number<uint8_t>(Module::kExternal, 0));
  OFSDP_REJECT_IF(external != 0, "has its values in a file of their own, which is not supported");
  std::set<std::string> names;
  OFSDP_ASSIGN_OR_RETURN(checkpoint.trained, read_tensors(*module, Module::kTrained, names));
  OFSDP_ASSIGN_OR_RETURN(checkpoint.frozen, read_tensors(*module, Module::kFrozen, names));
  return ok_status();
}

Result<std::vector<OrtParameterState>> read_states(const FlatTable& group) {
  std::vector<OrtParameterState> list;
  std::set<std::string> names;
  OFSDP_ASSIGN_OR_RETURN(const auto tables, group.tables(Group::kStates));
  for (const FlatTable& table : tables) {
    OrtParameterState state;
    OFSDP_ASSIGN_OR_RETURN(state.parameter, table.text(State::kParameter));
    const std::string subject = "state of '" + printable(state.parameter) + "'";
    if (!names.insert(state.parameter).second) return input_error("{} is there twice", subject);
    std::set<std::string> moments;
    OFSDP_ASSIGN_OR_RETURN(state.moments,
                           prefixed(subject, read_tensors(table, State::kMoments, moments)));
    OFSDP_REJECT_IF(state.moments.size() > kMaxMoments, "{}: expected at most {} tensors, found {}",
                    subject, kMaxMoments, state.moments.size());
    list.push_back(std::move(state));
  }
  return list;
}

Status read_optimizer(const FlatTable& root, OrtCheckpoint& checkpoint) {
  OFSDP_ASSIGN_OR_RETURN(const auto groups, root.tables(Root::kGroups));
  if (groups.empty()) return ok_status();
  OFSDP_REJECT_IF(groups.size() > 1, "expected one group of optimizer state, found {}",
                  groups.size());
  OrtOptimizerState state;
  OFSDP_ASSIGN_OR_RETURN(state.group, groups[0].text(Group::kName));
  OFSDP_ASSIGN_OR_RETURN(state.step, groups[0].number<int64_t>(Group::kStep, 0));
  OFSDP_ASSIGN_OR_RETURN(state.learning_rate, groups[0].number<float>(Group::kLearningRate, 0.0f));
  if (state.step < 0) return input_error("the optimizer's step: found {}", state.step);
  OFSDP_ASSIGN_OR_RETURN(state.parameters, read_states(groups[0]));
  checkpoint.optimizer = std::move(state);
  return ok_status();
}

template <typename T>
Status read_properties(const FlatTable& bag, FlatSlot slot, OrtCheckpoint& checkpoint) {
  OFSDP_ASSIGN_OR_RETURN(const auto tables, bag.tables(slot));
  for (const FlatTable& table : tables) {
    OrtProperty property;
    OFSDP_ASSIGN_OR_RETURN(property.name, table.text(Property::kName));
    if constexpr (std::is_same_v<T, std::string>) {
      OFSDP_ASSIGN_OR_RETURN(property.value, table.text(Property::kValue));
    } else {
      OFSDP_ASSIGN_OR_RETURN(property.value, table.number<T>(Property::kValue, T{}));
    }
    checkpoint.properties.push_back(std::move(property));
  }
  return ok_status();
}

// Writes the tables and remembers each hole's tensor.
class Describer {
 public:
  explicit Describer(OrtCheckpoint& checkpoint) : checkpoint_(checkpoint), writer_(kIdentifier) {}

  Result<std::string> run() {
    std::map<FlatSlot, size_t> fields{{Root::kVersion, 4}, {Root::kModule, 4}};
    if (checkpoint_.optimizer) fields[Root::kGroups] = 4;
    if (!checkpoint_.properties.empty()) fields[Root::kProperties] = 4;
    auto root = writer_.table(fields);
    writer_.root();
    writer_.set(root[Root::kVersion], checkpoint_.version);
    auto module = writer_.table({{Module::kTrained, 4}, {Module::kFrozen, 4}});
    writer_.link_to_last(root[Root::kModule]);
    tensors(module[Module::kTrained], checkpoint_.trained);
    tensors(module[Module::kFrozen], checkpoint_.frozen);
    if (checkpoint_.optimizer) optimizer(root[Root::kGroups]);
    if (!checkpoint_.properties.empty()) properties(root[Root::kProperties]);
    return finish();
  }

 private:
  void text(size_t place, const std::string& value) { writer_.link(place, writer_.text(value)); }

  void tensors(size_t place, std::vector<OrtTensor>& list) {
    const auto elements = writer_.tables(list.size());
    writer_.link_to_last(place);
    for (size_t i = 0; i < list.size(); ++i) tensor(elements[i], list[i]);
  }

  void tensor(size_t place, OrtTensor& tensor) {
    auto fields = writer_.table(
        {{Tensor::kName, 4}, {Tensor::kDims, 4}, {Tensor::kType, 4}, {Tensor::kData, 4}});
    writer_.link_to_last(place);
    text(fields[Tensor::kName], tensor.name);
    writer_.link(fields[Tensor::kDims], writer_.integers(tensor.shape.axes()));
    writer_.set(fields[Tensor::kType], tensor.onnx_type);
    writer_.hole(fields[Tensor::kData], tensor.bytes);
    tensors_.push_back(&tensor);
  }

  void optimizer(size_t place) {
    OrtOptimizerState& state = *checkpoint_.optimizer;
    const auto group = writer_.tables(1);
    writer_.link_to_last(place);
    auto fields = writer_.table(
        {{Group::kName, 4}, {Group::kStep, 8}, {Group::kLearningRate, 4}, {Group::kStates, 4}});
    writer_.link_to_last(group[0]);
    text(fields[Group::kName], state.group);
    writer_.set(fields[Group::kStep], state.step);
    writer_.set(fields[Group::kLearningRate], state.learning_rate);
    const auto states = writer_.tables(state.parameters.size());
    writer_.link_to_last(fields[Group::kStates]);
    for (size_t i = 0; i < state.parameters.size(); ++i) {
      auto entry = writer_.table({{State::kParameter, 4}, {State::kMoments, 4}});
      writer_.link_to_last(states[i]);
      text(entry[State::kParameter], state.parameters[i].parameter);
      tensors(entry[State::kMoments], state.parameters[i].moments);
    }
  }

  void properties(size_t place) {
    auto bag = writer_.table({{Bag::kInts, 4}, {Bag::kFloats, 4}, {Bag::kStrings, 4}});
    writer_.link_to_last(place);
    for (const Bag slot : {Bag::kInts, Bag::kFloats, Bag::kStrings}) {
      std::vector<const OrtProperty*> list;
      for (const OrtProperty& p : checkpoint_.properties) {
        if (p.value.index() == static_cast<size_t>(slot)) list.push_back(&p);
      }
      const auto elements = writer_.tables(list.size());
      writer_.link_to_last(bag[slot]);
      for (size_t i = 0; i < list.size(); ++i) property(elements[i], *list[i]);
    }
  }

  void property(size_t place, const OrtProperty& property) {
    const size_t bytes = std::holds_alternative<int64_t>(property.value) ? 8 : 4;
    auto fields = writer_.table({{Property::kName, 4}, {Property::kValue, bytes}});
    writer_.link_to_last(place);
    text(fields[Property::kName], property.name);
    const size_t value = fields[Property::kValue];
    if (const auto* words = std::get_if<std::string>(&property.value)) return text(value, *words);
    if (const auto* integer = std::get_if<int64_t>(&property.value)) writer_.set(value, *integer);
    if (const auto* number = std::get_if<float>(&property.value)) writer_.set(value, *number);
  }

  Result<std::string> finish() {
    std::vector<int64_t> holes;
    std::string made = writer_.finish(holes);
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i]->offset = holes[i];
    const OrtTensor* last = tensors_.empty() ? nullptr : tensors_.back();
    if (last == nullptr || last->offset + last->bytes <= kMaxFlatBytes) return made;
    return input_error("a checkpoint of {} bytes: expected at most {}", last->offset + last->bytes,
                       kMaxFlatBytes);
  }

  OrtCheckpoint& checkpoint_;
  FlatWriter writer_;
  std::vector<OrtTensor*> tensors_;  // in hole order
};

}  // namespace

const OrtTensor* OrtCheckpoint::tensor(const std::string& name) const {
  for (const auto* list : {&trained, &frozen}) {
    const auto found = std::ranges::find(*list, name, &OrtTensor::name);
    if (found != list->end()) return &*found;
  }
  return nullptr;
}

const OrtParameterState* OrtCheckpoint::state_of(const std::string& parameter) const {
  if (!optimizer) return nullptr;
  const auto found =
      std::ranges::find(optimizer->parameters, parameter, &OrtParameterState::parameter);
  return found == optimizer->parameters.end() ? nullptr : &*found;
}

Result<OrtCheckpoint> read_ort_checkpoint(std::span<const std::byte> bytes) {
  OrtCheckpoint checkpoint;
  OFSDP_ASSIGN_OR_RETURN(const FlatTable root, FlatTable::root(bytes, kIdentifier));
  OFSDP_ASSIGN_OR_RETURN(checkpoint.version, root.number<int32_t>(Root::kVersion, 0));
  OFSDP_REJECT_IF(checkpoint.version < kOldest || checkpoint.version > kNewest,
                  "expected version {} to {}, found {}", kOldest, kNewest, checkpoint.version);
  OFSDP_RETURN_IF_ERROR(read_module(root, checkpoint));
  OFSDP_RETURN_IF_ERROR(read_optimizer(root, checkpoint));
  OFSDP_ASSIGN_OR_RETURN(const auto bag, root.table(Root::kProperties));
  if (!bag) return checkpoint;
  OFSDP_RETURN_IF_ERROR(read_properties<int64_t>(*bag, Bag::kInts, checkpoint));
  OFSDP_RETURN_IF_ERROR(read_properties<float>(*bag, Bag::kFloats, checkpoint));
  OFSDP_RETURN_IF_ERROR(read_properties<std::string>(*bag, Bag::kStrings, checkpoint));
  return checkpoint;
}

Result<std::string> describe_ort_checkpoint(OrtCheckpoint& checkpoint) {
  return Describer(checkpoint).run();
}

namespace {

class Reader {
 public:
  Reader(const std::string& path, const onnx::GraphProto& graph) : path_(path), graph_(graph) {}

  Result<OrtOptimizer> run() {
    for (const auto& node : graph_.node()) OFSDP_RETURN_IF_ERROR(take(node));
    OFSDP_REJECT_IF(update_ == nullptr,
                    "{}: expected a node AdamWOptimizer or SGDOptimizerV2, found none", path_);
    OFSDP_RETURN_IF_ERROR(check_wires());
    return made_;
  }

 private:
  Status take(const onnx::NodeProto& node) {
    const bool known = node.domain() == kMicrosoft;
    const std::string& op = node.op_type();
    if (known && op == "InplaceClipGradNorm" && clip_ == nullptr && update_ == nullptr) {
      clip_ = &node;
      made_.clip_norm = float_attribute(node, "max_norm", 1.0f);
      return ok_status();
    }
    if (known && update_ == nullptr && (op == "AdamWOptimizer" || op == "SGDOptimizerV2")) {
      update_ = &node;
      if (op == "AdamWOptimizer") return read_adamw(node);
      made_.kind = OrtOptimizer::Kind::kSgd;
      return ok_status();
    }
    return input_error(
        "{}: node '{}' ({}): expected one AdamWOptimizer or SGDOptimizerV2 over all parameters, "
        "after InplaceClipGradNorm or alone; other nodes may mix parameters, which are sharded",
        path_, node.name(), operator_name(node));
  }

  Status read_adamw(const onnx::NodeProto& node) {
    made_.kind = OrtOptimizer::Kind::kAdamW;
    made_.beta1 = float_attribute(node, "alpha", made_.beta1);
    made_.beta2 = float_attribute(node, "beta", made_.beta2);
    made_.eps = float_attribute(node, "epsilon", made_.eps);
    made_.weight_decay = float_attribute(node, "weight_decay", made_.weight_decay);
    made_.bias_correction = int_attribute(node, "correct_bias", 1) != 0;
    const int64_t mode = int_attribute(node, "adam_mode", 0);
    made_.transformers = mode == 1;
    if (mode == 0 || mode == 1) return ok_status();
    return input_error("{}: node '{}' (AdamWOptimizer): expected adam_mode 0 or 1, found {}", path_,
                       node.name(), mode);
  }

  bool is_input(const std::string& name) const {
    return std::ranges::any_of(graph_.input(), [&](const auto& v) { return v.name() == name; });
  }

  Status check_wires() const {
    const int gradients = made_.kind == OrtOptimizer::Kind::kSgd ? 2 : 3;
    for (int i = 0; i < update_->input_size(); ++i) {
      const bool clipped = clip_ != nullptr && i == gradients;
      const std::string& name = update_->input(i);
      if (clipped ? clip_->output_size() > 0 && clip_->output(0) == name : is_input(name)) continue;
      return input_error("{}: node '{}' ({}): expected input {} to be {}, found '{}'", path_,
                         update_->name(), update_->op_type(), i,
                         clipped ? "the clipped gradients" : "an input of the graph", name);
    }
    if (clip_ == nullptr || (clip_->input_size() == 1 && is_input(clip_->input(0)))) return {};
    return input_error("{}: node '{}' ({}): expected the gradients as its input", path_,
                       clip_->name(), clip_->op_type());
  }

  const std::string& path_;
  const onnx::GraphProto& graph_;
  const onnx::NodeProto* clip_ = nullptr;
  const onnx::NodeProto* update_ = nullptr;
  OrtOptimizer made_;
};

}  // namespace

Result<OrtOptimizer> read_ort_optimizer(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  return Reader(path, model.graph()).run();
}

namespace {

constexpr const char* kTraining = "training_model.onnx";
constexpr const char* kOptimizer = "optimizer_model.onnx";
constexpr const char* kCheckpoint = "checkpoint";

// Returns the names in `folder` that end with kTraining.
std::vector<std::string> training_models(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(kTraining) && name[0] != '.') names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool is_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

Result<OrtCheckpoint> read_checkpoint(const OpenFile& file) {
  if (file.bytes == 0) return input_error("{}: is no checkpoint: the file is empty", file.path);
  OFSDP_ASSIGN_OR_RETURN(const FileMapping mapping, FileMapping::make(file));
  return prefixed(file.path + ": is no checkpoint of ONNX Runtime",
                  read_ort_checkpoint(mapping.bytes()));
}

}  // namespace

bool is_ort_folder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_directory(folder, error) && !training_models(folder).empty();
}

std::string ort_folder_of(const std::string& file) {
  const std::string name = base_filename(file);
  for (const std::string part : {kTraining, kOptimizer}) {
    if (!name.ends_with(part) || !is_file(file)) continue;
    const std::string folder = parent_folder(file);
    const std::string prefix = name.substr(0, name.size() - part.size());
    if (is_file(join_path(folder, prefix + kCheckpoint))) return folder;
  }
  return "";
}

Result<OrtPaths> ort_paths(const std::string& folder) {
  const auto names = training_models(folder);
  OFSDP_REJECT_IF(names.size() != 1, "{}: expected one file *{}, found {}{}", folder, kTraining,
                  names.size(), names.empty() ? "" : format_text(" ({})", joined(names, ", ")));
  const std::string prefix = names[0].substr(0, names[0].size() - std::strlen(kTraining));
  auto path = [&](const char* name) { return join_path(folder, prefix + name); };
  OrtPaths paths{path(kTraining), path("eval_model.onnx"), path(kOptimizer), path(kCheckpoint)};
  OFSDP_REJECT_IF(!is_file(paths.checkpoint), "{}: has {}{}, but no file {}", folder, prefix,
                  kTraining, base_filename(paths.checkpoint));
  if (!is_file(paths.eval)) paths.eval.clear();
  if (!is_file(paths.optimizer)) paths.optimizer.clear();
  return paths;
}

Initializer as_initializer(const OrtTensor& tensor, int file) {
  const DType dtype = dtype_from_onnx_number(tensor.onnx_type);
  Initializer made{tensor.name, dtype, tensor.shape, file, tensor.offset, tensor.bytes, {}, 0};
  made.encoding = Initializer::Encoding::kDense;
  made.stride = static_cast<int64_t>(dtype_size(dtype));
  return made;
}

Result<OrtCheckpoint> open_ort_checkpoint(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_reading(path));
  return read_checkpoint(file);
}

namespace {

constexpr const char* kBuffer = ".accumulation.buffer";
constexpr const char* kGradient = "_grad";

bool is_accumulator(const onnx::NodeProto& node) {
  return node.op_type() == "InPlaceAccumulatorV2" || node.op_type() == "InPlaceAccumulator";
}

// Returns "fc1.weight" for "fc1.weight_grad.accumulation.buffer", and "" for any other name.
std::string accumulated_parameter(const std::string& buffer) {
  const std::string suffix = std::string(kGradient) + kBuffer;
  return buffer.ends_with(suffix) ? buffer.substr(0, buffer.size() - suffix.size()) : "";
}

// Drops elements from a repeated field if `drop` returns true.
template <typename List, typename F>
void erase_if(List& list, const F& drop) {
  int kept = 0;
  for (int i = 0; i < list.size(); ++i) {
    if (drop(list.Get(i))) continue;
    if (kept != i) list.SwapElements(kept, i);
    ++kept;
  }
  list.DeleteSubrange(kept, list.size() - kept);
}

// Turns the training model into an ordinary one, as ort_artifacts.h describes.
class TrainingModel {
 public:
  TrainingModel(OrtArtifacts& artifacts, OpenFile checkpoint)
      : artifacts_(artifacts), checkpoint_(std::move(checkpoint)) {}

  Status run() {
    OFSDP_ASSIGN_OR_RETURN(model_, parse_model(artifacts_.training));
    contents_ = artifacts_.training.take_contents();
    OFSDP_RETURN_IF_ERROR(take_accumulators());
    OFSDP_RETURN_IF_ERROR(open_seed());
    OFSDP_RETURN_IF_ERROR(add_weights());
    for (const OrtGradient& gradient : artifacts_.gradients) declare_gradient(gradient);
    contents_.skeleton = model_.SerializeAsString();
    artifacts_.training.put_contents(std::move(contents_));
    return ok_status();
  }

 private:
  onnx::GraphProto& graph() { return *model_.mutable_graph(); }

  const onnx::ValueInfoProto* input(const std::string& name) {
    for (const auto& value : graph().input()) {
      if (value.name() == name) return &value;
    }
    return nullptr;
  }

  // ONNX Runtime adds gradients to buffers; here they are outputs, and the run reduces them.
  Status take_accumulators() {
    std::set<std::string> inputs, outputs;
    for (const auto& node : graph().node()) {
      if (!is_accumulator(node)) continue;
      OFSDP_REJECT_IF(node.input_size() < 2,
                      "{}: node '{}' ({}): expected a buffer and a gradient, found {} inputs",
                      path_, node.name(), node.op_type(), node.input_size());
      const std::string parameter = accumulated_parameter(node.input(0));
      OFSDP_REJECT_IF(
          !is_trained(parameter),
          "{}: node '{}' ({}) accumulates in '{}': expected the gradient of a parameter that {} "
          "has as trained",
          path_, node.name(), node.op_type(), node.input(0), artifacts_.paths.checkpoint);
      artifacts_.gradients.push_back({parameter, node.input(1)});
      inputs.insert(node.input(0));
      if (node.input_size() > 2) inputs.insert(node.input(2));
      outputs.insert(node.output().begin(), node.output().end());
    }
    OFSDP_REJECT_IF(inputs.empty(),
                    "{}: has no gradients: expected nodes InPlaceAccumulatorV2, found none", path_);
    erase_if(*graph().mutable_node(), is_accumulator);
    erase_if(*graph().mutable_input(), [&](const auto& v) { return inputs.contains(v.name()); });
    erase_if(*graph().mutable_output(), [&](const auto& v) { return outputs.contains(v.name()); });
    if (graph().output_size() > 0) return ok_status();
    return input_error("{}: expected the loss as its first output, found none", path_);
  }

  bool is_trained(const std::string& parameter) const {
    const auto& trained = artifacts_.checkpoint.trained;
    return !parameter.empty() &&
           std::ranges::find(trained, parameter, &OrtTensor::name) != trained.end();
  }

  // Backward starts from the constant 1; here each micro-batch has a separate number.
  Status open_seed() {
    artifacts_.seed = graph().output(0).name() + kGradient;
    bool found = false;
    for (const auto& tensor : graph().initializer()) {
      if (tensor.name() != artifacts_.seed) continue;
      auto value = constant_from_onnx(tensor);
      found = value.ok() && (*value)->desc.dtype == DType::kFloat32 &&
              (*value)->desc.numel() == 1 &&
              *reinterpret_cast<const float*>((*value)->bytes.data()) == 1.0f;
    }
    OFSDP_REJECT_IF(
        !found,
        "{}: expected an initializer '{}' of value 1, from which backward starts, found none",
        path_, artifacts_.seed);
    erase_if(*graph().mutable_initializer(),
             [&](const auto& t) { return t.name() == artifacts_.seed; });
    // Small numbers belong to the graph and are no weights.
    std::erase_if(contents_.initializers,
                  [](const Initializer& i) { return i.shape.numel() <= kSmallNumel; });
    *graph().add_input() = value_info(artifacts_.seed, {DType::kFloat32, Shape{}});
    return ok_status();
  }

  Status add_weights() {
    contents_.data_files.push_back({"checkpoint", std::move(checkpoint_)});
    for (const auto* list : {&artifacts_.checkpoint.trained, &artifacts_.checkpoint.frozen}) {
      for (const OrtTensor& tensor : *list) OFSDP_RETURN_IF_ERROR(add_weight(tensor));
    }
    return ok_status();
  }

  Status add_weight(const OrtTensor& tensor) {
    const onnx::ValueInfoProto* declared = input(tensor.name);
    if (declared == nullptr) {
      // ONNX Runtime's optimizations may leave a frozen weight unused.
      if (!is_trained(tensor.name)) return ok_status();
      return input_error("{}: has '{}', which is no input of {}", artifacts_.paths.checkpoint,
                         printable(tensor.name), path_);
    }
    OFSDP_RETURN_IF_ERROR(check_declared(tensor, *declared));
    const DType dtype = dtype_from_onnx_number(tensor.onnx_type);
    if (!is_floating(dtype)) return add_constant(tensor);
    const auto file = static_cast<int>(contents_.data_files.size());
    contents_.initializers.push_back(as_initializer(tensor, file));
    return ok_status();
  }

  Status check_declared(const OrtTensor& tensor, const onnx::ValueInfoProto& declared) const {
    const auto& type = declared.type().tensor_type();
    std::vector<int64_t> axes;
    for (const auto& dim : type.shape().dim()) axes.push_back(dim.dim_value());
    if (type.elem_type() == tensor.onnx_type && Shape(axes) == tensor.shape) return ok_status();
    return input_error("{}: '{}': expected {} of ONNX type {}, as {} says, found {} of type {}",
                       artifacts_.paths.checkpoint, printable(tensor.name), Shape(axes).text(),
                       type.elem_type(), path_, tensor.shape.text(), tensor.onnx_type);
  }

  Status add_constant(const OrtTensor& tensor) {
    std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
    OFSDP_RETURN_IF_ERROR(read_exactly(contents_.data_files.back().file, tensor.offset,
                                       std::as_writable_bytes(std::span(bytes))));
    *graph().add_initializer() = tensor_proto(
        tensor.name, {dtype_from_onnx_number(tensor.onnx_type), tensor.shape}, bytes.data());
    return ok_status();
  }

  void declare_gradient(const OrtGradient& gradient) {
    auto& output = *graph().add_output();
    const onnx::ValueInfoProto* parameter = input(gradient.parameter);
    *output.mutable_type() = parameter->type();
    output.set_name(gradient.value);
  }

  OrtArtifacts& artifacts_;
  const std::string path_ = artifacts_.paths.training;
  OpenFile checkpoint_;
  OnnxContents contents_;
  onnx::ModelProto model_;
};

}  // namespace

Result<OrtArtifacts> OrtArtifacts::open(const std::string& folder) {
  OrtArtifacts artifacts;
  OFSDP_ASSIGN_OR_RETURN(artifacts.paths, ort_paths(folder));
  OFSDP_ASSIGN_OR_RETURN(artifacts.training, OnnxFile::open(artifacts.paths.training));
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_for_reading(artifacts.paths.checkpoint));
  OFSDP_ASSIGN_OR_RETURN(artifacts.checkpoint, read_checkpoint(file));
  OFSDP_RETURN_IF_ERROR(TrainingModel(artifacts, std::move(file)).run());
  return artifacts;
}

}  // namespace ofsdp::importer
