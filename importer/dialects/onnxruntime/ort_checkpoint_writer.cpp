// describe_ort_checkpoint of ort_checkpoint.h.
#include <map>

#include "importer/dialects/onnxruntime/flat_buffer.h"
#include "importer/dialects/onnxruntime/ort_checkpoint.h"
#include "importer/dialects/onnxruntime/ort_checkpoint_slots.h"

namespace ofsdp::importer {
namespace {

constexpr int64_t kMostBytes = (int64_t{1} << 31) - 1;  // what FlatBuffers' verifier takes

// Writes the tables, and remembers which tensor each hole is for.
class Describer {
 public:
  explicit Describer(OrtCheckpoint& checkpoint)
      : checkpoint_(checkpoint), writer_(kOrtCheckpointIdentifier) {}

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

Result<std::string> describe_ort_checkpoint(OrtCheckpoint& checkpoint) {
  return Describer(checkpoint).run();
}

}  // namespace ofsdp::importer
