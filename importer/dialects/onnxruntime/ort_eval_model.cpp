#include "importer/dialects/onnxruntime/ort_eval_model.h"

#include <onnx/onnx_pb.h>

#include <set>

#include "importer/file/onnx_file.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {
namespace {

constexpr int64_t kMostModel = (int64_t{1} << 31) - 1;  // what protobuf parses
enum : uint32_t { kModelGraph = 7, kGraphInitializer = 5 };
enum : uint32_t { kTensorDims = 1, kTensorType = 2, kTensorName = 8, kTensorRaw = 9 };

std::string tensor_head(const OrtTensor& tensor) {
  std::string head;
  for (const int64_t axis : tensor.shape.axes()) append_int(head, kTensorDims, axis);
  append_int(head, kTensorType, tensor.onnx_type);
  append_bytes(head, kTensorName, tensor.name);
  append_tag(head, kTensorRaw, WireType::kBytes);
  append_varint(head, static_cast<uint64_t>(tensor.bytes));
  std::string field;
  append_tag(field, kGraphInitializer, WireType::kBytes);
  append_varint(field, head.size() + static_cast<uint64_t>(tensor.bytes));
  return field + head;
}

}  // namespace

Result<OrtEvalModel> lay_out_eval_model(const std::string& path, const OrtCheckpoint& checkpoint) {
  OrtEvalModel made;
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  onnx::ModelProto model;
  if (!model.ParseFromString(file.skeleton())) {
    return input_error("{}: is no ONNX model: it does not parse", path);
  }
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
  for (const auto& tensor : model.graph().initializer()) {
    if (checkpoint.tensor(tensor.name()) == nullptr) *graph.add_initializer() = tensor;
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
  append_tag(made.head, kModelGraph, WireType::kBytes);
  append_varint(made.head, bytes);
  if (bytes + made.head.size() > static_cast<uint64_t>(kMostModel)) {
    return input_error("{} with its weights inside has {} bytes: expected at most {}", path,
                       bytes + made.head.size(), kMostModel);
  }
  made.head += body;
  auto at = static_cast<int64_t>(made.head.size());
  for (auto& [head, tensor] : made.tensors) {
    tensor.offset = at + static_cast<int64_t>(head.size());
    at = tensor.offset + tensor.bytes;
  }
  return made;
}

}  // namespace ofsdp::importer
