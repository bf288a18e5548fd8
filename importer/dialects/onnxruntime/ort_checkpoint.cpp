#include "importer/dialects/onnxruntime/ort_checkpoint.h"

#include <algorithm>
#include <set>

#include "importer/dialects/onnxruntime/flat_buffer.h"
#include "importer/dialects/onnxruntime/ort_checkpoint_slots.h"
#include "importer/file/wire.h"
#include "importer/proto/onnx_tensor.h"

namespace ofsdp::importer {
namespace {

constexpr int kOldest = 1, kNewest = 2;  // versions
constexpr size_t kMostMoments = 8;
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
  OFSDP_ASSIGN_OR_RETURN(const FlatTable root, FlatTable::root(bytes, kOrtCheckpointIdentifier));
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

}  // namespace ofsdp::importer
