// GraphTypes: the types of an ONNX graph's values while the graph is being rewritten, from ONNX's
// own shape inference. Nodes are inferred when somebody asks, those added since the last time only.
//
// Ownership: refers to the model, which must outlive it and only ever gets more nodes. Threads: one
// at a time. Errors: none; what cannot be inferred has no type.
#pragma once

#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "importer/proto/bounded_schemas.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

class GraphTypes {
 public:
  // `known` gives values of small integer tensors (shapes, axes), or null.
  GraphTypes(const onnx::ModelProto& model, std::function<ConstantPtr(const std::string&)> known)
      : model_(model), known_(std::move(known)) {
    for (const auto& info : model.graph().value_info()) add(info.name(), info.type());
    for (const auto& info : model.graph().input()) add(info.name(), info.type());
    for (const auto& tensor : model.graph().initializer()) {
      onnx::TypeProto type;
      set_tensor_type(type, tensor.data_type(), tensor.dims());
      add(tensor.name(), type);
    }
  }

  const onnx::TypeProto* find(const std::string& name) {
    infer();
    const auto found = types_.find(name);
    return found == types_.end() ? nullptr : &found->second;
  }

  // Returns the axes of a tensor, -1 for an unknown one; none when not even their number is known.
  std::optional<std::vector<int64_t>> axes(const std::string& name) {
    const onnx::TypeProto* type = find(name);
    if (type == nullptr || !type->has_tensor_type() || !type->tensor_type().has_shape()) return {};
    std::vector<int64_t> axes;
    for (const auto& dim : type->tensor_type().shape().dim()) {
      axes.push_back(dim.has_dim_value() ? dim.dim_value() : -1);
    }
    return axes;
  }

  // Counts what was learnt: values that were not known before may be now.
  int generation() const { return generation_; }

 private:
  static constexpr int64_t kMostKnown = 64;  // elements of a value that inference is told
  static constexpr int kMostRounds = 4;      // of values that make types that make values
  static constexpr const char* kKnownSuffix = "//known";

  static bool complete(const onnx::TypeProto& type) {
    if (!type.has_tensor_type()) return type.value_case() != onnx::TypeProto::VALUE_NOT_SET;
    return type.tensor_type().elem_type() != 0 && type.tensor_type().has_shape();
  }

  static bool small_integers(const onnx::TypeProto& type) {
    if (!complete(type) || !type.has_tensor_type()) return false;
    const auto& tensor = type.tensor_type();
    const int element = tensor.elem_type();
    if (element != onnx::TensorProto::INT64 && element != onnx::TensorProto::INT32) return false;
    return tensor.shape().dim_size() <= 1;
  }

  void infer() {
    const int count = model_.graph().node_size();
    if (busy_ || inferred_ == count) return;
    busy_ = true;
    onnx::ModelProto part = part_from(inferred_);
    inferred_ = count;
    infer(part);
    for (int round = 0; round < kMostRounds && add_known(part); ++round) infer(part);
    busy_ = false;
  }

  // Keeps the sizes that a known type has and `type` has not: the file may declare more than
  // inference can tell (of Compress).
  void add(const std::string& name, const onnx::TypeProto& type) {
    const auto found = types_.find(name);
    if (found == types_.end()) {
      types_.emplace(name, type);
    } else if (complete(type)) {
      const onnx::TypeProto before = std::exchange(found->second, type);
      keep_sizes(before, found->second);
    }
  }

  static void keep_sizes(const onnx::TypeProto& before, onnx::TypeProto& type) {
    if (!before.has_tensor_type() || !type.has_tensor_type()) return;
    const auto& from = before.tensor_type().shape();
    auto& shape = *type.mutable_tensor_type()->mutable_shape();
    if (!before.tensor_type().has_shape() || from.dim_size() != shape.dim_size()) return;
    for (int i = 0; i < shape.dim_size(); ++i) {
      if (!shape.dim(i).has_dim_value() && from.dim(i).has_dim_value())
        *shape.mutable_dim(i) = from.dim(i);
    }
  }

  // Declares a value from outside of the part: its type, and its elements when they may matter.
  void declare(onnx::ModelProto& part, const std::string& name) {
    const auto found = types_.find(name);
    if (found == types_.end()) return;
    auto& input = *part.mutable_graph()->add_input();
    input.set_name(name);
    *input.mutable_type() = found->second;
    if (!small_integers(found->second)) return;
    const ConstantPtr value = known_(name);
    if (value == nullptr || value->desc.numel() > kMostKnown) return;
    *part.mutable_graph()->add_initializer() = tensor_proto(name, value->desc, value->bytes.data());
  }

  // The nodes from `first` on.
  onnx::ModelProto part_from(int first) {
    onnx::ModelProto part;
    part.set_ir_version(model_.ir_version());
    *part.mutable_opset_import() = model_.opset_import();
    std::unordered_set<std::string> inside;
    const auto& nodes = model_.graph().node();
    for (int i = first; i < nodes.size(); ++i) {
      for (const std::string& name : nodes[i].input()) {
        if (!name.empty() && inside.insert(name).second) declare(part, name);
      }
      for (const std::string& name : nodes[i].output()) inside.insert(name);
      *part.mutable_graph()->add_node() = nodes[i];
    }
    return part;
  }

  void infer(onnx::ModelProto& part) {
    try {
      onnx::shape_inference::InferShapes(part, &schemas_,
                                         onnx::ShapeInferenceOptions{false, 0, true});
    } catch (const std::exception&) {
      // Types inferred before the refused node are kept.
    }
    for (const auto& info : part.graph().value_info()) add(info.name(), info.type());
    ++generation_;
  }

  // Values of the part's own nodes that are known by now (pads and sizes that a chain of nodes
  // computes) become initializers, which inference reads. Returns whether there was one.
  bool add_known(onnx::ModelProto& part) {
    std::unordered_set<std::string> inside;
    bool found = false;
    for (auto& node : *part.mutable_graph()->mutable_node()) {
      for (std::string& name : *node.mutable_input()) {
        if (!inside.contains(name)) continue;
        const auto type = types_.find(name);
        if (type == types_.end() || !small_integers(type->second)) continue;
        const ConstantPtr value = known_(name);
        if (value == nullptr || value->desc.numel() > kMostKnown) continue;
        const std::string known_name = name + kKnownSuffix;
        if (inside.insert(known_name).second) {
          *part.mutable_graph()->add_initializer() =
              tensor_proto(known_name, value->desc, value->bytes.data());
        }
        name = known_name;
        found = true;
      }
      if (node.op_type() == "Constant") continue;
      inside.insert(node.output().begin(), node.output().end());
    }
    return found;
  }

  const onnx::ModelProto& model_;
  std::function<ConstantPtr(const std::string&)> known_;
  std::unordered_map<std::string, onnx::TypeProto> types_;
  int inferred_ = 0;  // nodes of the model
  int generation_ = 0;
  BoundedSchemas schemas_;
  bool busy_ = false;
};

}  // namespace ofsdp::importer
