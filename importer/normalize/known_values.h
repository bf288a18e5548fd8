// KnownValues: what an ONNX graph computes from constants and static shapes alone, found while the
// graph is being rewritten: conditions of `If`, numbers of iterations, positions in sequences.
// Evaluates with the registry's own kernels. Floating-point initializers are weights, so nothing
// that is made of them is known.
//
// Ownership: refers to the model (which only ever gets more nodes) and the registry. Threads: one
// at a time. Errors: none; null is "not known".
#pragma once

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "importer/passes/specialize.h"
#include "importer/proto/graph_types.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/core/registry.h"

namespace ofsdp::importer {

class KnownValues {
 public:
  KnownValues(const onnx::ModelProto& model, const Registry& registry)
      : model_(model), registry_(registry) {
    const auto& initializers = model.graph().initializer();
    for (int i = 0; i < initializers.size(); ++i) {
      if (!is_floating(dtype_of_number(initializers[i].data_type()))) {
        initializers_[initializers[i].name()] = i;
      }
    }
  }

  void set_types(GraphTypes& types) { types_ = &types; }
  ConstantPtr find(const std::string& name) {
    if (name.empty()) return nullptr;
    index();
    const auto found = values_.find(name);
    const bool current =
        found != values_.end() &&
        (found->second.value != nullptr || found->second.generation == types_->generation());
    if (current) return found->second.value;
    ConstantPtr value = evaluate(name);
    if (value != nullptr || makers_.contains(name)) values_[name] = {value, types_->generation()};
    return value;
  }

  // Returns the one element of an integer or bool.
  std::optional<int64_t> scalar(const std::string& name) {
    const ConstantPtr value = find(name);
    if (value == nullptr || value->desc.numel() != 1 || is_floating(value->desc.dtype)) return {};
    return static_cast<int64_t>(to_doubles(value->desc, value->bytes.data())[0]);
  }

 private:
  static ConstantPtr ints(const std::vector<int64_t>& values, bool scalar) {
    const Shape shape = scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())};
    return make_constant<int64_t>(DType::kInt64, shape, values);
  }

  static bool is_op(const onnx::NodeProto& node, const char* op) {
    return node.op_type() == op && short_domain(node.domain()).empty();
  }

  void index() {
    const auto& nodes = model_.graph().node();
    for (; indexed_ < nodes.size(); ++indexed_) {
      for (const std::string& name : nodes[indexed_].output()) makers_[name] = indexed_;
    }
  }

  ConstantPtr evaluate(const std::string& name) {
    if (const auto found = initializers_.find(name); found != initializers_.end()) {
      auto constant = constant_from_onnx(model_.graph().initializer(found->second));
      return constant.ok() ? *constant : nullptr;
    }
    const auto maker = makers_.find(name);
    if (maker == makers_.end()) return nullptr;
    const onnx::NodeProto& node = model_.graph().node(maker->second);
    if (is_op(node, "Shape") || is_op(node, "Size")) return shape_part(node);
    if (is_op(node, "Gather")) {
      ConstantPtr value = one_axis(node);
      if (value != nullptr) return value;
    }
    return folded(node, name);
  }

  ConstantPtr shape_part(const onnx::NodeProto& node) {
    const auto axes = types_->axes(node.input(0));
    if (!axes) return nullptr;
    auto unknown = [](auto begin, auto end) { return std::find(begin, end, -1) != end; };
    if (is_op(node, "Size")) {
      return unknown(axes->begin(), axes->end()) ? nullptr : ints({Shape(*axes).numel()}, true);
    }
    const auto rank = static_cast<int64_t>(axes->size());
    auto bound = [&](const char* which, int64_t otherwise) {
      const int64_t at = int_attribute(node, which, otherwise);
      return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
    };
    const auto begin = axes->begin() + bound("start", 0);
    const auto end = std::max(begin, axes->begin() + bound("end", rank));
    return unknown(begin, end) ? nullptr : ints({begin, end}, false);
  }

  // Gather(Shape(x), k): one axis may be known where others are not.
  ConstantPtr one_axis(const onnx::NodeProto& node) {
    const auto maker = makers_.find(node.input(0));
    if (maker == makers_.end()) return nullptr;
    const onnx::NodeProto& shape = model_.graph().node(maker->second);
    if (!is_op(shape, "Shape") || shape.attribute_size() > 0) return nullptr;
    const ConstantPtr index = find(node.input(1));
    const auto axes = types_->axes(shape.input(0));
    if (!axes || index == nullptr || index->desc.numel() != 1) return nullptr;
    const auto rank = static_cast<int64_t>(axes->size());
    const auto at = static_cast<int64_t>(to_doubles(index->desc, index->bytes.data())[0]);
    if (at < -rank || at >= rank) return nullptr;
    const int64_t axis = (*axes)[static_cast<size_t>(at < 0 ? at + rank : at)];
    return axis < 0 ? nullptr : ints({axis}, index->desc.shape.rank() == 0);
  }

  // The node alone, on constants.
  ConstantPtr folded(const onnx::NodeProto& node, const std::string& name) {
    const OpDef* op = registry_.find(node.domain(), node.op_type());
    if (op == nullptr || op->random) return nullptr;
    Graph graph;
    graph.registry = &registry_;
    GraphEditor editor(graph);
    Node one{op, node.name(), {}, {}, {}};
    for (const std::string& input : node.input()) {
      const ConstantPtr value = find(input);
      if (value == nullptr && !input.empty()) return nullptr;
      one.inputs.push_back(value == nullptr ? 0 : editor.add_constant(input, value));
    }
    auto attributes = attributes_from_onnx(node);
    if (!attributes.ok()) return nullptr;
    one.attributes = *std::move(attributes);
    for (const std::string& output : node.output()) {
      one.outputs.push_back(
          output.empty() ? 0 : editor.add_value({output, ValueKind::kActivation, {}}));
    }
    graph.nodes.push_back(std::move(one));
    const auto result = specialize(graph, {}, Mode::kTrain);
    return result.ok() ? result->value(result->find(name)).constant : nullptr;
  }

  const onnx::ModelProto& model_;
  const Registry& registry_;
  GraphTypes* types_ = nullptr;
  std::unordered_map<std::string, int> makers_;        // value -> its node
  std::unordered_map<std::string, int> initializers_;  // not floating-point
  // A value that was looked up; null: not known from the types of that generation.
  struct Found {
    ConstantPtr value;
    int generation = 0;
  };
  std::unordered_map<std::string, Found> values_;
  int indexed_ = 0;
};

}  // namespace ofsdp::importer
