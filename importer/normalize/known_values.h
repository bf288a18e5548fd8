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
#include <utility>
#include <vector>

#include "importer/passes/specialize.h"
#include "importer/proto/graph_types.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
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
  // Finds the operands of a value first, on a stack of its own: a file may have a chain of nodes of
  // any length.
  ConstantPtr find(const std::string& name) {
    index();
    if (const auto value = at_once(name)) return *value;
    std::vector<Waiting> stack{waiting(name)};
    for (;;) {
      Waiting& top = stack.back();
      ConstantPtr value;
      if (top.done()) {
        value = finish(top);
        stack.pop_back();
        if (stack.empty()) return value;
      } else {
        const std::string& input = top.node->input(top.order[top.next]);
        const auto known = at_once(input);
        if (!known && makers_.at(input) < top.maker) {
          stack.push_back(waiting(input));
          continue;
        }
        value = known.value_or(nullptr);
      }
      take(stack.back(), std::move(value));
    }
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

  // A value whose node waits for its inputs, which are looked up in `order` until one is not known.
  struct Waiting {
    std::string name;
    const onnx::NodeProto* node;
    int maker;
    std::vector<int> order;
    std::vector<ConstantPtr> inputs;
    size_t next = 0;
    bool unknown = false;
    ConstantPtr value = {};  // found before all inputs are

    bool done() const { return unknown || value != nullptr || next == order.size(); }
  };

  Waiting waiting(const std::string& name) {
    const int maker = makers_.at(name);
    const onnx::NodeProto& node = model_.graph().node(maker);
    Waiting made{name, &node, maker, {}, {}};
    for (int i = 0; i < node.input_size(); ++i) made.order.push_back(i);
    made.inputs.resize(made.order.size());
    // The position first: with it one axis of a shape may be known where others are not.
    if (gathered_shape(node) != nullptr) std::swap(made.order[0], made.order[1]);
    return made;
  }

  void take(Waiting& to, ConstantPtr value) {
    const int input = to.order[to.next++];
    to.unknown = value == nullptr && !to.node->input(input).empty();
    if (value != nullptr && to.next == 1 && input == 1) to.value = one_axis(*to.node, *value);
    to.inputs[static_cast<size_t>(input)] = std::move(value);
  }

  ConstantPtr finish(Waiting& from) {
    ConstantPtr value = from.value;
    if (value == nullptr && !from.unknown) value = folded(*from.node, from.name, from.inputs);
    return remember(from.name, std::move(value));
  }

  ConstantPtr remember(const std::string& name, ConstantPtr value) {
    values_[name] = {value, types_->generation()};
    return value;
  }

  // The value if it can be said without other values; none: its node has to be looked at.
  std::optional<ConstantPtr> at_once(const std::string& name) {
    if (name.empty()) return nullptr;
    if (const auto found = values_.find(name); found != values_.end()) {
      const bool current =
          found->second.value != nullptr || found->second.generation == types_->generation();
      if (current) return found->second.value;
    }
    if (const auto found = initializers_.find(name); found != initializers_.end()) {
      auto constant = constant_from_onnx(model_.graph().initializer(found->second));
      return constant.ok() ? *constant : nullptr;
    }
    const auto maker = makers_.find(name);
    if (maker == makers_.end()) return nullptr;
    const onnx::NodeProto& node = model_.graph().node(maker->second);
    if (is_op(node, "Shape") || is_op(node, "Size")) return remember(name, shape_part(node));
    const OpDef* op = registry_.find(node.domain(), node.op_type());
    const bool foldable = op != nullptr && !op->random && known_bytes_ <= kMostFoldedBytes;
    if (!foldable && gathered_shape(node) == nullptr) return remember(name, nullptr);
    return {};
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

  // The node of `shape` in Gather(shape, k), or null.
  const onnx::NodeProto* gathered_shape(const onnx::NodeProto& node) const {
    if (!is_op(node, "Gather") || node.input_size() != 2) return nullptr;
    const auto maker = makers_.find(node.input(0));
    if (maker == makers_.end()) return nullptr;
    const onnx::NodeProto& shape = model_.graph().node(maker->second);
    return is_op(shape, "Shape") && shape.attribute_size() == 0 ? &shape : nullptr;
  }

  // Gather(Shape(x), k): one axis may be known where others are not.
  ConstantPtr one_axis(const onnx::NodeProto& node, const Constant& index) {
    const auto axes = types_->axes(gathered_shape(node)->input(0));
    if (!axes || index.desc.numel() != 1) return nullptr;
    const auto rank = static_cast<int64_t>(axes->size());
    const auto at = static_cast<int64_t>(to_doubles(index.desc, index.bytes.data())[0]);
    if (at < -rank || at >= rank) return nullptr;
    const int64_t axis = (*axes)[static_cast<size_t>(at < 0 ? at + rank : at)];
    return axis < 0 ? nullptr : ints({axis}, index.desc.shape.rank() == 0);
  }

  // The node alone, on constants.
  ConstantPtr folded(const onnx::NodeProto& node, const std::string& name,
                     const std::vector<ConstantPtr>& inputs) {
    const OpDef* op = registry_.find(node.domain(), node.op_type());
    if (op == nullptr || op->random || known_bytes_ > kMostFoldedBytes) return nullptr;
    Graph graph;
    graph.registry = &registry_;
    GraphEditor editor(graph);
    Node one{op, node.name(), {}, {}, {}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string& input = node.input(static_cast<int>(i));
      one.inputs.push_back(inputs[i] == nullptr ? 0 : editor.add_constant(input, inputs[i]));
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
    if (!result.ok()) return nullptr;
    ConstantPtr value = result->value(result->find(name)).constant;
    if (value != nullptr) known_bytes_ += static_cast<int64_t>(value->bytes.size());
    return value;
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
  int64_t known_bytes_ = 0;  // of values that were computed
};

}  // namespace ofsdp::importer
