#include "importer/dialects/onnxruntime/ort_checkpoint.h"

#include <algorithm>
#include <map>
#include <set>

#include "importer/file/flat_buffer.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kIdentifier = "ODTC";

// The fields of each table; ort_checkpoint.h lists them with their types.
enum class Root { kVersion, kModule, kGroups, kProperties };
enum class Module { kTrained, kFrozen, kNominal, kExternal };
enum class Group { kName, kStep, kLearningRate, kStates };
enum class State { kParameter, kMoments };
enum class Bag { kInts, kFloats, kStrings };
enum class Property { kName, kValue };
enum class Tensor { kName, kDims = 2, kType, kData, kExternalOffset = 6 };

constexpr int kOldest = 1, kNewest = 2;  // versions
constexpr size_t kMostMoments = 8;
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
  const DType dtype = dtype_of_number(tensor.onnx_type);
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
    OFSDP_REJECT_IF(state.moments.size() > kMostMoments,
                    "{}: expected at most {} tensors, found {}", subject, kMostMoments,
                    state.moments.size());
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

// Writes the tables and remembers which tensor each hole is for.
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
    if (last == nullptr || last->offset + last->bytes <= kMostFlatBytes) return made;
    return input_error("a checkpoint of {} bytes: expected at most {}", last->offset + last->bytes,
                       kMostFlatBytes);
  }

  OrtCheckpoint& checkpoint_;
  FlatWriter writer_;
  std::vector<OrtTensor*> tensors_;  // in the order of the holes
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

}  // namespace ofsdp::importer
