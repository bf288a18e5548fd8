#include "importer/ort_checkpoint.h"

#include <algorithm>
#include <set>

#include "importer/flat_buffer.h"
#include "importer/onnx_tensor.h"
#include "importer/wire.h"

namespace ofsdp {
namespace {

constexpr const char* kIdentifier = "ODTC";
constexpr int kOldest = 1, kNewest = 2;  // versions
constexpr size_t kMostMoments = 8;
constexpr int64_t kMostBytes = (int64_t{1} << 31) - 1;  // what FlatBuffers' verifier takes

enum Slots {  // see the header
  kVersion = 0,
  kModule = 1,
  kGroups = 2,
  kProperties = 3,
  kTrained = 0,
  kFrozen = 1,
  kNominal = 2,
  kExternal = 3,
  kGroupName = 0,
  kStep = 1,
  kLearningRate = 2,
  kStates = 3,
  kParameter = 0,
  kMoments = 1,
  kInts = 0,
  kFloats = 1,
  kStrings = 2,
  kPropertyName = 0,
  kPropertyValue = 1,
  kName = 0,
  kDims = 2,
  kType = 3,
  kData = 4,
  kExternalOffset = 6
};

Result<OrtTensor> read_tensor(const FlatTable& table) {
  OrtTensor tensor;
  OFSDP_ASSIGN_OR_RETURN(tensor.name, table.text(kName));
  const std::string subject = "tensor '" + printable(tensor.name) + "'";
  OFSDP_ASSIGN_OR_RETURN(tensor.onnx_type, table.number<int32_t>(kType, 0));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, table.integers(kDims));
  OFSDP_ASSIGN_OR_RETURN(const int64_t external, table.number<int64_t>(kExternalOffset, -1));
  if (external >= 0) {
    return input_error("{}: its bytes are in a file of their own, which is not supported", subject);
  }
  const DType dtype = dtype_from_onnx(tensor.onnx_type);
  if (dtype == DType::kUndefined) {
    return input_error("{}: ONNX type {} is not supported", subject, tensor.onnx_type);
  }
  auto numel = checked_numel(dims);
  if (!numel.ok()) return std::move(numel).status().with_prefix(subject);
  tensor.shape = Shape(dims);
  OFSDP_ASSIGN_OR_RETURN(const auto data, table.bytes(kData));
  const FlatBytes found = data.value_or(FlatBytes{});
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  if (*numel > found.count / element || found.count != *numel * element) {
    return input_error("{}: expected {} elements of {} bytes, as its shape {} says, found {} bytes",
                       subject, *numel, element, tensor.shape.text(), found.count);
  }
  tensor.offset = found.offset;
  tensor.bytes = found.count;
  return tensor;
}

Result<std::vector<OrtTensor>> read_tensors(const FlatTable& table, int slot,
                                            std::set<std::string>& names) {
  std::vector<OrtTensor> list;
  OFSDP_ASSIGN_OR_RETURN(const auto tables, table.tables(slot));
  for (const FlatTable& entry : tables) {
    OFSDP_ASSIGN_OR_RETURN(OrtTensor tensor, read_tensor(entry));
    if (!names.insert(tensor.name).second) {
      return input_error("tensor '{}' is there twice", printable(tensor.name));
    }
    list.push_back(std::move(tensor));
  }
  return list;
}

Status read_module(const FlatTable& root, OrtCheckpoint& checkpoint) {
  OFSDP_ASSIGN_OR_RETURN(const auto module, root.table(kModule));
  if (!module) return input_error("has no parameters");
  OFSDP_ASSIGN_OR_RETURN(const auto nominal, module->number<uint8_t>(kNominal, 0));
  if (nominal != 0) {
    return input_error("is a nominal checkpoint: it has names and shapes, but no values");
  }
  OFSDP_ASSIGN_OR_RETURN(const auto external, module->number<uint8_t>(kExternal, 0));
  if (external != 0) {
    return input_error("has its values in a file of their own, which is not supported");
  }
  std::set<std::string> names;
  OFSDP_ASSIGN_OR_RETURN(checkpoint.trained, read_tensors(*module, kTrained, names));
  OFSDP_ASSIGN_OR_RETURN(checkpoint.frozen, read_tensors(*module, kFrozen, names));
  return ok_status();
}

Result<std::vector<OrtParameterState>> read_states(const FlatTable& group) {
  std::vector<OrtParameterState> list;
  std::set<std::string> names;
  OFSDP_ASSIGN_OR_RETURN(const auto tables, group.tables(kStates));
  for (const FlatTable& table : tables) {
    OrtParameterState state;
    OFSDP_ASSIGN_OR_RETURN(state.parameter, table.text(kParameter));
    const std::string subject = "state of '" + printable(state.parameter) + "'";
    if (!names.insert(state.parameter).second) return input_error("{} is there twice", subject);
    std::set<std::string> moments;
    auto read = read_tensors(table, kMoments, moments);
    if (!read.ok()) return std::move(read).status().with_prefix(subject);
    state.moments = *std::move(read);
    if (state.moments.size() > kMostMoments) {
      return input_error("{}: expected at most {} tensors, found {}", subject, kMostMoments,
                         state.moments.size());
    }
    list.push_back(std::move(state));
  }
  return list;
}

Status read_optimizer(const FlatTable& root, OrtCheckpoint& checkpoint) {
  OFSDP_ASSIGN_OR_RETURN(const auto groups, root.tables(kGroups));
  if (groups.empty()) return ok_status();
  if (groups.size() > 1) {
    return input_error("expected one group of optimizer state, found {}", groups.size());
  }
  OrtOptimizerState state;
  OFSDP_ASSIGN_OR_RETURN(state.group, groups[0].text(kGroupName));
  OFSDP_ASSIGN_OR_RETURN(state.step, groups[0].number<int64_t>(kStep, 0));
  OFSDP_ASSIGN_OR_RETURN(state.learning_rate, groups[0].number<float>(kLearningRate, 0.0f));
  if (state.step < 0) return input_error("the optimizer's step: found {}", state.step);
  OFSDP_ASSIGN_OR_RETURN(state.parameters, read_states(groups[0]));
  checkpoint.optimizer = std::move(state);
  return ok_status();
}

template <typename T>
Status read_properties(const FlatTable& bag, int slot, OrtCheckpoint& checkpoint) {
  OFSDP_ASSIGN_OR_RETURN(const auto tables, bag.tables(slot));
  for (const FlatTable& table : tables) {
    OrtProperty property;
    OFSDP_ASSIGN_OR_RETURN(property.name, table.text(kPropertyName));
    if constexpr (std::is_same_v<T, std::string>) {
      OFSDP_ASSIGN_OR_RETURN(property.value, table.text(kPropertyValue));
    } else {
      OFSDP_ASSIGN_OR_RETURN(property.value, table.number<T>(kPropertyValue, T{}));
    }
    checkpoint.properties.push_back(std::move(property));
  }
  return ok_status();
}

// Writes the tables, and remembers which tensor each hole is for.
class Describer {
 public:
  explicit Describer(OrtCheckpoint& checkpoint) : checkpoint_(checkpoint), writer_(kIdentifier) {}

  Result<std::string> run() {
    std::map<int, size_t> fields{{kVersion, 4}, {kModule, 4}, {kProperties, 4}};
    if (checkpoint_.optimizer) fields[kGroups] = 4;
    if (checkpoint_.properties.empty()) fields.erase(kProperties);
    auto root = writer_.table(fields);
    writer_.root();
    writer_.set(root[kVersion], checkpoint_.version);
    auto module = writer_.table({{kTrained, 4}, {kFrozen, 4}});
    writer_.link_to_last(root[kModule]);
    tensors(module[kTrained], checkpoint_.trained);
    tensors(module[kFrozen], checkpoint_.frozen);
    if (checkpoint_.optimizer) optimizer(root[kGroups]);
    if (!checkpoint_.properties.empty()) properties(root[kProperties]);
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
    auto fields = writer_.table({{kName, 4}, {kDims, 4}, {kType, 4}, {kData, 4}});
    writer_.link_to_last(place);
    text(fields[kName], tensor.name);
    writer_.link(fields[kDims], writer_.integers(tensor.shape.axes()));
    writer_.set(fields[kType], tensor.onnx_type);
    writer_.hole(fields[kData], tensor.bytes);
    tensors_.push_back(&tensor);
  }

  void optimizer(size_t place) {
    OrtOptimizerState& state = *checkpoint_.optimizer;
    const auto group = writer_.tables(1);
    writer_.link_to_last(place);
    auto fields = writer_.table({{kGroupName, 4}, {kStep, 8}, {kLearningRate, 4}, {kStates, 4}});
    writer_.link_to_last(group[0]);
    text(fields[kGroupName], state.group);
    writer_.set(fields[kStep], state.step);
    writer_.set(fields[kLearningRate], state.learning_rate);
    const auto states = writer_.tables(state.parameters.size());
    writer_.link_to_last(fields[kStates]);
    for (size_t i = 0; i < state.parameters.size(); ++i) {
      auto entry = writer_.table({{kParameter, 4}, {kMoments, 4}});
      writer_.link_to_last(states[i]);
      text(entry[kParameter], state.parameters[i].parameter);
      tensors(entry[kMoments], state.parameters[i].moments);
    }
  }

  void properties(size_t place) {
    auto bag = writer_.table({{kInts, 4}, {kFloats, 4}, {kStrings, 4}});
    writer_.link_to_last(place);
    for (const int slot : {kInts, kFloats, kStrings}) {
      std::vector<const OrtProperty*> list;
      for (const OrtProperty& p : checkpoint_.properties) {
        if (static_cast<int>(p.value.index()) == slot) list.push_back(&p);
      }
      const auto elements = writer_.tables(list.size());
      writer_.link_to_last(bag[slot]);
      for (size_t i = 0; i < list.size(); ++i) property(elements[i], *list[i]);
    }
  }

  void property(size_t place, const OrtProperty& property) {
    const size_t bytes = std::holds_alternative<int64_t>(property.value) ? 8 : 4;
    auto fields = writer_.table({{kPropertyName, 4}, {kPropertyValue, bytes}});
    writer_.link_to_last(place);
    text(fields[kPropertyName], property.name);
    const size_t value = fields[kPropertyValue];
    if (const auto* words = std::get_if<std::string>(&property.value)) return text(value, *words);
    if (const auto* integer = std::get_if<int64_t>(&property.value)) writer_.set(value, *integer);
    if (const auto* number = std::get_if<float>(&property.value)) writer_.set(value, *number);
  }

  Result<std::string> finish() {
    std::vector<int64_t> holes;
    std::string made = writer_.finish(holes);
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i]->offset = holes[i];
    const OrtTensor* last = tensors_.empty() ? nullptr : tensors_.back();
    if (last == nullptr || last->offset + last->bytes <= kMostBytes) return made;
    return input_error("a checkpoint of {} bytes: expected at most {}", last->offset + last->bytes,
                       kMostBytes);
  }

  OrtCheckpoint& checkpoint_;
  FlatWriter writer_;
  std::vector<OrtTensor*> tensors_;  // in the order of the holes
};

}  // namespace

const OrtParameterState* OrtCheckpoint::state_of(const std::string& parameter) const {
  if (!optimizer) return nullptr;
  const auto found =
      std::ranges::find(optimizer->parameters, parameter, &OrtParameterState::parameter);
  return found == optimizer->parameters.end() ? nullptr : &*found;
}

Result<OrtCheckpoint> read_ort_checkpoint(std::span<const std::byte> bytes) {
  OrtCheckpoint checkpoint;
  OFSDP_ASSIGN_OR_RETURN(const FlatTable root, FlatTable::root(bytes, kIdentifier));
  OFSDP_ASSIGN_OR_RETURN(checkpoint.version, root.number<int32_t>(kVersion, 0));
  if (checkpoint.version < kOldest || checkpoint.version > kNewest) {
    return input_error("expected version {} to {}, found {}", kOldest, kNewest, checkpoint.version);
  }
  OFSDP_RETURN_IF_ERROR(read_module(root, checkpoint));
  OFSDP_RETURN_IF_ERROR(read_optimizer(root, checkpoint));
  OFSDP_ASSIGN_OR_RETURN(const auto bag, root.table(kProperties));
  if (!bag) return checkpoint;
  OFSDP_RETURN_IF_ERROR(read_properties<int64_t>(*bag, kInts, checkpoint));
  OFSDP_RETURN_IF_ERROR(read_properties<float>(*bag, kFloats, checkpoint));
  OFSDP_RETURN_IF_ERROR(read_properties<std::string>(*bag, kStrings, checkpoint));
  return checkpoint;
}

Result<std::string> describe_ort_checkpoint(OrtCheckpoint& checkpoint) {
  return Describer(checkpoint).run();
}

}  // namespace ofsdp
