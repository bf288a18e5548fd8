// rewrite_graph resolves everything in an ONNX graph that is not an operator on tensors, before the
// graph becomes a Graph:
//
//   If                     the branch that runs, if the condition is known
//   Loop, Scan             unrolled, if the iteration count is known
//   sequences, optionals   the tensors in them
//   ONNX functions         the body, if the operator has no kernel here
//
// Each has a function at the end.
//
// It works on the model in the newest opset, node by node in order, and resolves new nodes in turn.
// A node that it cannot resolve stays; `reasons` has the reason for each operator.
//
// The registry must outlive the call. Errors: kInput for a wrong node (an index outside a
// sequence).
#pragma once

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/namespaces.h"
#include "kernels/core/op_def.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

// GraphTypes: value types in an ONNX graph while it is being rewritten, from ONNX's own shape
// inference. Infers nodes on demand, each once. A value without an inferred type has none. The
// model must outlive it and may only get more nodes.

// ONNX's schemas for shape inference, with a bound on data propagation, which lists a vector's
// elements one by one, known or not: 2^31 - 1 elements would take all memory. Vectors longer than
// kMaxListed are not taken for shapes, and values computed from them stay unknown.
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
  // `known` returns the values in small integer tensors (shapes, axes), or null.
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

  // Returns a tensor's axes, -1 for unknown ones; nothing if even the rank is unknown.
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
  static constexpr int64_t kMaxKnown = 64;  // elements in a value passed to inference
  static constexpr int kMaxRounds = 4;      // values make types, which make values
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

  // Keeps sizes in the known type that `type` lacks: the file may declare more than inference can
  // tell (Compress).
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

  // Declares a value from outside the part: the type and, if they may matter, the elements.
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

  // Turns known values of the part's own nodes (pads and sizes that a node chain computes) into
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
  int inferred_ = 0;  // nodes so far
  int generation_ = 0;
  BoundedSchemas schemas_;
  bool busy_ = false;
};

// Names in an ONNX graph. Makes fresh names, and renames bodies (functions, branches, loops) so
// they do not clash with the graph's names.

using NameMap = std::unordered_map<std::string, std::string>;  // inside -> outside

class GraphNames {
 public:
  explicit GraphNames(const onnx::GraphProto& graph) { collect(graph); }

  // Returns `name` or, if it is taken, `name` followed by a number.
  std::string fresh(const std::string& name) {
    std::string made = name;
    while (made.empty() || !taken_.insert(made).second) {
      made = name + "__" + std::to_string(++last_[name]);
    }
    return made;
  }

  // Renames the node: names in `bound` become their bound names. Everything else that the node
  // defines, also in subgraphs, gets a fresh name, which is added to `bound`. Other names belong to
  // an outer graph and stay.
  void rename(onnx::NodeProto& node, NameMap& bound) {
    if (!node.name().empty()) node.set_name(fresh(node.name()));
    for (auto& name : *node.mutable_input()) replace(name, bound);
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) rename(*attribute.mutable_g(), bound);
    }
    for (auto& name : *node.mutable_output()) define(name, bound);
  }

 private:
  static void replace(std::string& name, const NameMap& bound) {
    const auto found = bound.find(name);
    if (found != bound.end()) name = found->second;
  }

  void collect(const onnx::GraphProto& graph) {
    for (const auto& info : graph.input()) taken_.insert(info.name());
    for (const auto& info : graph.output()) taken_.insert(info.name());
    for (const auto& tensor : graph.initializer()) taken_.insert(tensor.name());
    for (const auto& node : graph.node()) {
      taken_.insert(node.name());
      for (const auto& name : node.output()) taken_.insert(name);
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) collect(attribute.g());
      }
    }
  }

  void rename(onnx::GraphProto& graph, NameMap bound) {
    std::unordered_set<std::string> local;
    auto shadow = [&](std::string& name) {
      if (local.insert(name).second)
        bound.erase(name);  // an input may have a default value with the same name
      define(name, bound);
    };
    for (auto& info : *graph.mutable_input()) shadow(*info.mutable_name());
    for (auto& tensor : *graph.mutable_initializer()) shadow(*tensor.mutable_name());
    for (auto& node : *graph.mutable_node()) rename(node, bound);
    for (auto& info : *graph.mutable_output()) replace(*info.mutable_name(), bound);
  }

  void define(std::string& name, NameMap& bound) {
    if (name.empty()) return;
    const auto found = bound.find(name);
    name = found != bound.end() ? found->second : bound[name] = fresh(name);
  }

  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> last_;
};

// Values that depend only on constants and static shapes, while a graph is being rewritten: `If`
// conditions, iteration counts, sequence indices. The registry's own kernels compute them. A vector
// of sizes may be known in part; nodes that select from it see the parts.
//
// Floating-point initializers are weights, so values made from them are unknown, except for numbers
// that training cannot change: of rank 0, or read only by comparisons.
//
// The model, which may only grow, and the registry must outlive it. Null means "unknown".

class KnownValues {
 public:
  KnownValues(const onnx::ModelProto& model, const Registry& registry)
      : model_(model), registry_(registry) {
    const auto& initializers = model.graph().initializer();
    const auto trainable = trainable_names();
    for (int i = 0; i < initializers.size(); ++i) {
      const bool number = initializers[i].dims_size() == 0 || !trainable(initializers[i].name());
      if (number || !is_floating(dtype_from_onnx_number(initializers[i].data_type()))) {
        initializers_[initializers[i].name()] = i;
      }
    }
  }

  void set_types(GraphTypes& types) { types_ = &types; }
  // Gives an input its value.
  void know(const std::string& name, ConstantPtr value) { given_[name] = std::move(value); }

  // Finds a value's operands first, on an explicit stack: a node chain in a file may have any
  // length.
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

  // Returns the single element if it is an integer or bool.
  std::optional<int64_t> scalar(const std::string& name) {
    const ConstantPtr value = find(name);
    if (value == nullptr || value->desc.numel() != 1 || is_floating(value->desc.dtype)) return {};
    return static_cast<int64_t>(to_doubles(value->desc, value->bytes.data())[0]);
  }

 private:
  static constexpr int64_t kUnknownSize = -1;
  static constexpr int kMaxSelections = 16;  // nodes between a shape and a number of it

  // Returns a function that tells whether a node other than a comparison reads a value.
  std::function<bool(const std::string&)> trainable_names() const {
    auto names = std::make_shared<std::unordered_set<std::string>>();
    for (const auto& node : model_.graph().node()) collect_reads(node, *names);
    return [names](const std::string& name) { return names->contains(name); };
  }

  static void collect_reads(const onnx::NodeProto& node, std::unordered_set<std::string>& names) {
    static const std::unordered_set<std::string> kComparisons = {
        "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"};
    if (!kComparisons.contains(node.op_type())) {
      names.insert(node.input().begin(), node.input().end());
    }
    for (const auto& attribute : node.attribute()) {
      for (const auto& inner : attribute.g().node()) collect_reads(inner, names);
    }
  }

  static ConstantPtr ints(const std::vector<int64_t>& values, bool scalar,
                          DType dtype = DType::kInt64) {
    const Shape shape = scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())};
    if (dtype == DType::kInt64) return make_constant<int64_t>(dtype, shape, values);
    const std::vector<int32_t> narrow(values.begin(), values.end());
    return make_constant<int32_t>(dtype, shape, narrow);
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

  // A value that waits for the node's inputs, which are looked up in `order` until one is unknown.
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
    // The index first: with it, one axis in a shape may be known although others are not.
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
    if (value == nullptr) value = selected(*from.node);
    return remember(from.name, std::move(value));
  }

  ConstantPtr remember(const std::string& name, ConstantPtr value) {
    values_[name] = {value, types_->generation()};
    return value;
  }

  // Returns the value if it depends on no other values; nothing if the node must be examined.
  std::optional<ConstantPtr> at_once(const std::string& name) {
    if (name.empty()) return nullptr;
    if (const auto found = given_.find(name); found != given_.end()) return found->second;
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
    const bool foldable = op != nullptr && !op->random && known_bytes_ <= kMaxFoldedBytes;
    if (!foldable && gathered_shape(node) == nullptr) return remember(name, nullptr);
    return {};
  }

  ConstantPtr shape_part(const onnx::NodeProto& node) {
    if (is_op(node, "Size")) {
      const auto axes = types_->axes(node.input(0));
      const bool known = axes && std::ranges::count(*axes, kUnknownSize) == 0;
      return known ? ints({Shape(*axes).numel()}, true) : nullptr;
    }
    const auto sizes = axes_of(node);
    const bool known = sizes && std::ranges::count(*sizes, kUnknownSize) == 0;
    return known ? ints(*sizes, false) : nullptr;
  }

  // Returns a Shape's elements as far as they are known, if their number is.
  std::optional<std::vector<int64_t>> axes_of(const onnx::NodeProto& shape) {
    const auto axes = types_->axes(shape.input(0));
    if (!axes) return {};
    const auto rank = static_cast<int64_t>(axes->size());
    auto bound = [&](const char* which, int64_t otherwise) {
      const int64_t at = int_attribute(shape, which, otherwise);
      return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
    };
    const auto begin = axes->begin() + bound("start", 0);
    return std::vector<int64_t>{begin, std::max(begin, axes->begin() + bound("end", rank))};
  }

  // A number or vector of int64 or int32 in which some elements may be unknown.
  struct Sizes {
    std::vector<int64_t> values;  // kUnknownSize: unknown
    bool scalar = false;
    DType dtype = DType::kInt64;
  };

  // Returns the sizes that a node selects, if all of them are known.
  ConstantPtr selected(const onnx::NodeProto& node) {
    const auto sizes = select(node, kMaxSelections);
    if (!sizes || std::ranges::count(sizes->values, kUnknownSize) > 0) return nullptr;
    return ints(sizes->values, sizes->scalar, sizes->dtype);
  }

  std::optional<Sizes> sizes_of(const std::string& name, int depth) {
    if (const ConstantPtr value = find(name); value != nullptr) return sizes_in(*value);
    const auto maker = makers_.find(name);
    if (depth == 0 || maker == makers_.end()) return {};
    const onnx::NodeProto& node = model_.graph().node(maker->second);
    if (!is_op(node, "Shape")) return select(node, depth - 1);
    const auto axes = axes_of(node);
    return axes ? std::optional(Sizes{*axes}) : std::nullopt;
  }

  static std::optional<Sizes> sizes_in(const Constant& value) {
    const DType dtype = value.desc.dtype;
    const bool integers = dtype == DType::kInt64 || dtype == DType::kInt32;
    if (!integers || value.desc.shape.rank() > 1) return {};
    const auto numbers = to_doubles(value.desc, value.bytes.data());
    Sizes sizes{{numbers.begin(), numbers.end()}, value.desc.shape.rank() == 0, dtype};
    if (std::ranges::count(sizes.values, kUnknownSize) > 0) return {};
    return sizes;
  }

  std::optional<Sizes> select(const onnx::NodeProto& node, int depth) {
    if (node.input_size() == 0) return {};
    const auto from = [&] { return sizes_of(node.input(0), depth); };
    if (is_op(node, "Identity")) return from();
    if (is_op(node, "Cast")) return cast(node, from());
    if (is_op(node, "Squeeze") || is_op(node, "Unsqueeze")) {
      auto sizes = from();
      if (!sizes || sizes->values.size() != 1) return {};
      sizes->scalar = is_op(node, "Squeeze");
      return sizes;
    }
    if (is_op(node, "Gather") && node.input_size() == 2) return gathered(node, from());
    if (is_op(node, "Slice") && node.input_size() >= 3) return sliced(node, from());
    return is_op(node, "Concat") ? concatenated(node, depth) : std::nullopt;
  }

  static std::optional<Sizes> cast(const onnx::NodeProto& node, std::optional<Sizes> from) {
    const DType to = dtype_from_onnx_number(int_attribute(node, "to", 0));
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const auto fits = [](int64_t size) { return size <= kMost; };
    const bool narrow = to == DType::kInt32 && from && std::ranges::all_of(from->values, fits);
    if (!from || (to != DType::kInt64 && !narrow)) return {};
    from->dtype = to;
    return from;
  }

  std::optional<Sizes> gathered(const onnx::NodeProto& node, std::optional<Sizes> from) {
    const ConstantPtr at = find(node.input(1));
    const bool known = from && !from->scalar && at != nullptr && at->desc.shape.rank() <= 1;
    if (!known || is_floating(at->desc.dtype)) return {};
    const auto count = static_cast<double>(from->values.size());
    Sizes sizes{{}, at->desc.shape.rank() == 0, from->dtype};
    for (double i : to_doubles(at->desc, at->bytes.data())) {
      i += i < 0 ? count : 0;
      if (i < 0 || i >= count) return {};
      sizes.values.push_back(from->values[static_cast<size_t>(i)]);
    }
    return sizes;
  }

  std::optional<Sizes> sliced(const onnx::NodeProto& node, std::optional<Sizes> from) {
    const auto begin = scalar(node.input(1)), end = scalar(node.input(2));
    const bool plain = node.input_size() < 5 || scalar(node.input(4)) == 1;
    if (!from || from->scalar || !begin || !end || !plain) return {};
    const auto count = static_cast<int64_t>(from->values.size());
    const auto bound = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
    };
    const auto first = from->values.begin() + bound(*begin);
    return Sizes{{first, std::max(first, from->values.begin() + bound(*end))}, false, from->dtype};
  }

  std::optional<Sizes> concatenated(const onnx::NodeProto& node, int depth) {
    Sizes all;
    for (const std::string& name : node.input()) {
      const auto part = sizes_of(name, depth);
      const bool first = all.values.empty();
      if (!part || part->scalar || (!first && part->dtype != all.dtype)) return {};
      all.dtype = part->dtype;
      all.values.insert(all.values.end(), part->values.begin(), part->values.end());
    }
    return all;
  }

  // Returns the node that makes `shape` in Gather(shape, k), or null.
  const onnx::NodeProto* gathered_shape(const onnx::NodeProto& node) const {
    if (!is_op(node, "Gather") || node.input_size() != 2) return nullptr;
    const auto maker = makers_.find(node.input(0));
    if (maker == makers_.end()) return nullptr;
    const onnx::NodeProto& shape = model_.graph().node(maker->second);
    return is_op(shape, "Shape") ? &shape : nullptr;
  }

  // Gather(Shape(x), k): one axis may be known although others are not.
  ConstantPtr one_axis(const onnx::NodeProto& node, const Constant& index) {
    const auto axes = axes_of(*gathered_shape(node));
    if (!axes || index.desc.numel() != 1) return nullptr;
    const auto rank = static_cast<int64_t>(axes->size());
    const auto at = static_cast<int64_t>(to_doubles(index.desc, index.bytes.data())[0]);
    if (at < -rank || at >= rank) return nullptr;
    const int64_t axis = (*axes)[static_cast<size_t>(at < 0 ? at + rank : at)];
    return axis < 0 ? nullptr : ints({axis}, index.desc.shape.rank() == 0);
  }

  // Computes only this node, on constants.
  ConstantPtr folded(const onnx::NodeProto& node, const std::string& name,
                     const std::vector<ConstantPtr>& inputs) {
    const OpDef* op = registry_.find(node.domain(), node.op_type());
    if (op == nullptr || op->random || known_bytes_ > kMaxFoldedBytes) return nullptr;
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
  std::unordered_map<std::string, int> makers_;        // value -> the node that makes it
  std::unordered_map<std::string, int> initializers_;  // not floating-point
  // A look-up's result; null: unknown with that generation's types.
  struct Found {
    ConstantPtr value;
    int generation = 0;
  };
  std::unordered_map<std::string, Found> values_;
  std::unordered_map<std::string, ConstantPtr> given_;  // inputs
  int indexed_ = 0;
  int64_t known_bytes_ = 0;  // computed values' bytes
};

using Reasons = std::map<std::string, std::string>;  // operator, as messages name it -> reason

// `numbers`: inputs that hold one number in each batch.
using InputNumbers = std::map<std::string, double>;
Result<Reasons> rewrite_graph(onnx::ModelProto& model, const Registry& registry,
                              const InputNumbers& numbers = {});

using IntAttributes = std::map<std::string, int64_t>;

// A tensor cut along an axis with unknown size into pieces with `size`: a sequence with unknown
// length.
struct OpenSplit {
  std::string tensor;
  int64_t axis = 0;
  int64_t size = 1;
  bool squeezed = false;  // pieces with size 1 lose the axis
};

class GraphRewriter {
 public:
  GraphRewriter(onnx::ModelProto& model, const Registry& registry, const InputNumbers& numbers);
  Result<Reasons> run();

  // For resolvers. `process` resolves the node or keeps it.
  Status process(onnx::NodeProto node);
  void keep(onnx::NodeProto node) {
    ++made_nodes_;
    made_bytes_ += static_cast<int64_t>(node.ByteSizeLong());
    *model_.mutable_graph()->add_node() = std::move(node);
  }
  Status refuse(onnx::NodeProto node, const std::string& why);
  Status add(const std::string& op, const std::vector<std::string>& inputs,
             const std::vector<std::string>& outputs, const IntAttributes& attributes = {});
  // Makes `to` another name for `from`: a tensor, sequence or optional.
  Status alias(const std::string& from, const std::string& to);
  void constant(const std::string& name, const onnx::TensorProto& tensor);
  // Adds a rank 0 constant; `type` is TensorProto's INT64 or BOOL.
  void scalar(const std::string& name, int type, int64_t value);
  // Adds an int64 constant with one axis. Returns the fresh name.
  std::string ints(const std::vector<int64_t>& values);

  // Processes the body's nodes with `inputs`. Returns the outputs' outer names.
  Result<std::vector<std::string>> process_body(onnx::GraphProto body,
                                                const std::vector<std::string>& inputs);
  // Returns the `count` pieces along `axis`, which goes away; the next function joins pieces.
  Result<std::vector<std::string>> unstack(const std::string& name, int64_t axis, int64_t count);
  Status stack(const std::vector<std::string>& pieces, int64_t axis, const std::string& to);

  const onnx::ModelProto& model() const { return model_; }
  const Registry& registry() const { return registry_; }
  GraphNames& names() { return names_; }
  GraphTypes& types() { return types_; }
  KnownValues& known() { return known_; }

  // Remembers a tensor sequence under `name`.
  Status hold(const std::string& name, std::vector<std::string> tensors);

  // Sequences and optionals by name; empty: an optional without an element.
  std::map<std::string, std::vector<std::string>> sequences;
  std::map<std::string, OpenSplit> open_splits;
  std::map<std::string, bool> optionals;  // true: it has an element, with the same name

 private:
  Status resolve(onnx::NodeProto& node);
  Status check_budgets() const;

  onnx::ModelProto& model_;
  const Registry& registry_;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes_;  // still to be processed
  GraphNames names_;
  KnownValues known_;
  GraphTypes types_;
  Reasons reasons_;
  // Graph size so far, including the file's nodes, and the size of all sequences.
  int64_t made_nodes_ = 0, made_bytes_ = 0, held_tensors_ = 0;
  int64_t file_nodes_ = 0, file_bytes_ = 0;
};

// Node resolvers: control flow, sequences, functions. They refuse a node that they cannot resolve.
// Errors: kInput for a wrong node.

// Control flow that depends only on KnownValues:
//
//   If          the branch that runs replaces it
//   Loop, Scan  unrolled; a Loop ends once the condition is false, which must be known in every
//               iteration
//
// Weights inside a branch came out of it before (importer/file/branch_weights.h). Weights inside a
// body become constants.
// https://onnx.ai/onnx/operators/onnx__If.html, https://onnx.ai/onnx/operators/onnx__Loop.html,
// https://onnx.ai/onnx/operators/onnx__Scan.html
Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Sequences and optional values, which exporters leave around tensors. A sequence is a list of
// names, and an index in it must be known. SplitToSequence becomes a Split if the piece sizes are
// known, else an OpenSplit with Slices as pieces.
//
// Resolves SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt,
// SequenceLength, SequenceMap, SplitToSequence, ConcatFromSequence, Optional, OptionalHasElement,
// OptionalGetElement, and Identity of either.
//
// Errors: kInput for an axis or an index that does not exist.
// https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html
bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Returns the body if ONNX defines the operator as a function and it has no kernel here. Converts a
// body from an older opset if an operator in it has changed since. Returns nothing if the operator
// is not a function, or if the body is unavailable (unknown input types). Catches the ONNX
// library's exceptions.
std::optional<std::vector<onnx::NodeProto>> function_body(GraphRewriter& rewriter,
                                                          const onnx::NodeProto& node);

// Replaces calls of the model's own functions by their bodies.
Status inline_local_functions(onnx::ModelProto& model);

// A model file ready to be read node by node: checked and converted to kOpset, with functions
// inlined and control flow resolved. It computes in float32 even if weights have other types, and
// the operators have the registry's domains.
//
// Errors: kInput naming the file. Catches the ONNX library's exceptions.

struct NormalizedModel {
  onnx::ModelProto proto;
  std::vector<std::string> initializers;  // names before any conversion
  ModuleScopes scopes;
  Reasons reasons;  // for operators that could not be resolved
};

// `forward`: a serialized model that replaces the file's skeleton; empty: the skeleton. Initializer
// names and scopes always come from the skeleton.
Result<NormalizedModel> normalized_model(const OnnxFile& file, const Operators& operators,
                                         const std::string& forward = "");

}  // namespace ofsdp::importer
