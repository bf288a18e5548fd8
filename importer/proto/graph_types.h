// GraphTypes: types of the values of an ONNX graph while it is being rewritten, from ONNX's own
// shape inference. Infers nodes on demand, each once. A value without an inferred type has none.
// The model must outlive it and may only get more nodes.
#pragma once

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "importer/proto/onnx_protos.h"
#include "kernels/base/namespaces.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

// ONNX's schemas for shape inference, with a bound on data propagation, which lists the elements of
// a vector one by one, known or not: an axis of 2^31 - 1 would take all memory. Vectors of more
// than kMaxListed elements are no shapes, and values computed from them stay unknown.
// https://github.com/onnx/onnx/blob/main/docs/proposals/SymbolicShapeInfProposal.md

class BoundedSchemas final : public onnx::ISchemaRegistry {
 public:
  const onnx::OpSchema* GetSchema(const std::string& key, int most_version,
                                  const std::string& domain) const override {
    const auto* schema = onnx::OpSchemaRegistry::Instance()->GetSchema(key, most_version, domain);
    if (schema == nullptr || !schema->has_data_propagation_function()) return schema;
    auto& bounded = bounded_[schema];
    if (bounded == nullptr) {
      bounded = std::make_unique<onnx::OpSchema>(*schema);
      bounded->PartialDataPropagationFunction(
          [propagate = schema->GetDataPropagationFunction()](onnx::DataPropagationContext& c) {
            if (is_short(c)) propagate(c);
          });
    }
    return bounded.get();
  }

 private:
  static constexpr int64_t kMaxListed = 4096;

  static bool is_short(const onnx::DataPropagationContext& c) {
    for (size_t i = 0; i < c.getNumInputs(); ++i) {
      const onnx::TypeProto* type = c.getInputType(i);
      if (type == nullptr || !type->has_tensor_type()) continue;
      const auto& shape = type->tensor_type().shape();
      if (shape.dim_size() == 1 && shape.dim(0).dim_value() > kMaxListed) return false;
    }
    return true;
  }

  mutable std::map<const onnx::OpSchema*, std::unique_ptr<onnx::OpSchema>> bounded_;
};

class GraphTypes {
 public:
  // `known` returns values of small integer tensors (shapes, axes), or null.
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

  // Returns the axes of a tensor, -1 for unknown ones; nothing if even their number is unknown.
  std::optional<std::vector<int64_t>> axes(const std::string& name) {
    const onnx::TypeProto* type = find(name);
    if (type == nullptr || !type->has_tensor_type() || !type->tensor_type().has_shape()) return {};
    std::vector<int64_t> axes;
    for (const auto& dim : type->tensor_type().shape().dim()) {
      axes.push_back(dim.has_dim_value() ? dim.dim_value() : -1);
    }
    return axes;
  }

  // Increases if something was inferred, so unknown values may be known now.
  int generation() const { return generation_; }

 private:
  static constexpr int64_t kMaxKnown = 64;  // elements of a value passed to inference
  static constexpr int kMaxRounds = 4;      // of values that make types that make values
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
    for (int round = 0; round < kMaxRounds && add_known(part); ++round) infer(part);
    busy_ = false;
  }

  // Keeps sizes of the known type that `type` lacks: the file may declare more than inference can
  // tell (of Compress).
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

  // Declares a value from outside of the part: the type and, if they may matter, the elements.
  void declare(onnx::ModelProto& part, const std::string& name) {
    const auto found = types_.find(name);
    if (found == types_.end()) return;
    auto& input = *part.mutable_graph()->add_input();
    input.set_name(name);
    *input.mutable_type() = found->second;
    if (!small_integers(found->second)) return;
    const ConstantPtr value = known_(name);
    if (value == nullptr || value->desc.numel() > kMaxKnown) return;
    *part.mutable_graph()->add_initializer() = tensor_proto(name, value->desc, value->bytes.data());
  }

  // Returns the nodes from `first` on.
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
      // Keeps types inferred before the refused node.
    }
    for (const auto& info : part.graph().value_info()) add(info.name(), info.type());
    ++generation_;
  }

  // Turns known values of the part's own nodes (pads and sizes that a chain of nodes computes) into
  // initializers, which inference reads. Returns whether there was one.
  bool add_known(onnx::ModelProto& part) {
    std::unordered_set<std::string> inside;
    bool found = false;
    for (auto& node : *part.mutable_graph()->mutable_node()) {
      for (std::string& name : *node.mutable_input()) {
        if (!inside.contains(name)) continue;
        const auto type = types_.find(name);
        if (type == types_.end() || !small_integers(type->second)) continue;
        const ConstantPtr value = known_(name);
        if (value == nullptr || value->desc.numel() > kMaxKnown) continue;
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
  int inferred_ = 0;  // number of nodes
  int generation_ = 0;
  BoundedSchemas schemas_;
  bool busy_ = false;
};

}  // namespace ofsdp::importer
