// rewrite_graph resolves everything in an ONNX graph that is no operator on tensors, before the
// graph becomes a Graph:
//
//   If                     the branch that runs, if its condition is known
//   Loop, Scan             unrolled, if the number of iterations is known
//   sequences, optionals   the tensors in them
//   functions of ONNX      the body of an operator without a kernel here
//
// Each has a function at the end of this header.
//
// It works on the model in the newest opset, node by node in order, and resolves new nodes in turn.
// A node that it cannot resolve stays; `reasons` has the reason for each operator.
//
// The registry must outlive the call. Errors: kInput for a wrong node (an index outside of a
// sequence).
#pragma once

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "importer/passes/specialize.h"
#include "importer/proto/graph_types.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/core/registry.h"

namespace ofsdp::importer {

// Names of an ONNX graph. Makes fresh names, and renames bodies (of functions, branches, loops) so
// they do not clash with names of the graph.

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
        bound.erase(name);  // an input may have a default value with its name
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

// Values that depend only on constants and static shapes, while a graph is being rewritten:
// conditions of `If`, numbers of iterations, indices in sequences. The registry's own kernels
// compute them. Floating-point initializers are weights, so values made of them are unknown.
//
// The model, which may only grow, and the registry must outlive it. Null means "unknown".

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
  // Finds the operands of a value first, on a stack of its own: a chain of nodes in a file may have
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

  // Returns the single element of an integer or bool.
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

  // A value that waits for the inputs of the node, which are looked up in `order` until one is
  // unknown.
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
    // The index first: with it, one axis of a shape may be known although others are not.
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

  // Returns the value if it depends on no other values; nothing if the node must be examined.
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
    const bool foldable = op != nullptr && !op->random && known_bytes_ <= kMaxFoldedBytes;
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

  // Returns the node of `shape` in Gather(shape, k), or null.
  const onnx::NodeProto* gathered_shape(const onnx::NodeProto& node) const {
    if (!is_op(node, "Gather") || node.input_size() != 2) return nullptr;
    const auto maker = makers_.find(node.input(0));
    if (maker == makers_.end()) return nullptr;
    const onnx::NodeProto& shape = model_.graph().node(maker->second);
    return is_op(shape, "Shape") && shape.attribute_size() == 0 ? &shape : nullptr;
  }

  // Gather(Shape(x), k): one axis may be known although others are not.
  ConstantPtr one_axis(const onnx::NodeProto& node, const Constant& index) {
    const auto axes = types_->axes(gathered_shape(node)->input(0));
    if (!axes || index.desc.numel() != 1) return nullptr;
    const auto rank = static_cast<int64_t>(axes->size());
    const auto at = static_cast<int64_t>(to_doubles(index.desc, index.bytes.data())[0]);
    if (at < -rank || at >= rank) return nullptr;
    const int64_t axis = (*axes)[static_cast<size_t>(at < 0 ? at + rank : at)];
    return axis < 0 ? nullptr : ints({axis}, index.desc.shape.rank() == 0);
  }

  // Computes the node alone, on constants.
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
  std::unordered_map<std::string, int> makers_;        // value -> its node
  std::unordered_map<std::string, int> initializers_;  // not floating-point
  // The result of a look-up; null: unknown with the types of that generation.
  struct Found {
    ConstantPtr value;
    int generation = 0;
  };
  std::unordered_map<std::string, Found> values_;
  int indexed_ = 0;
  int64_t known_bytes_ = 0;  // of computed values
};

using Reasons = std::map<std::string, std::string>;  // operator, as messages name it -> reason

Result<Reasons> rewrite_graph(onnx::ModelProto& model, const Registry& registry);

using IntAttributes = std::map<std::string, int64_t>;

// A tensor cut along an axis of unknown size into pieces of `size`: a sequence of unknown length.
struct OpenSplit {
  std::string tensor;
  int64_t axis = 0;
  int64_t size = 1;
  bool squeezed = false;  // pieces of size 1 lose their axis
};

class GraphRewriter {
 public:
  GraphRewriter(onnx::ModelProto& model, const Registry& registry);
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
  // Makes `to` another name of `from`: a tensor, sequence or optional.
  Status alias(const std::string& from, const std::string& to);
  void constant(const std::string& name, const onnx::TensorProto& tensor);
  // Adds a constant of rank 0; `type` is INT64 or BOOL of TensorProto.
  void scalar(const std::string& name, int type, int64_t value);
  // Adds an int64 constant of one axis. Returns the fresh name.
  std::string ints(const std::vector<int64_t>& values);

  // Processes the nodes of `body` with `inputs`. Returns the outer names of the outputs.
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

  // Remembers a sequence of tensors under `name`.
  Status hold(const std::string& name, std::vector<std::string> tensors);

  // Sequences and optionals by name; empty: an optional without an element.
  std::map<std::string, std::vector<std::string>> sequences;
  std::map<std::string, OpenSplit> open_splits;
  std::map<std::string, bool> optionals;  // true: it has an element, of the same name

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
  // Sizes of the graph so far, including the nodes of the file, and of all sequences.
  int64_t made_nodes_ = 0, made_bytes_ = 0, held_tensors_ = 0;
  int64_t file_nodes_ = 0, file_bytes_ = 0;
};

// Resolvers of nodes: control flow, sequences, functions. They refuse a node that they cannot
// resolve. Errors: kInput for a wrong node.

// Control flow that depends only on KnownValues:
//
//   If          the branch that runs takes its place
//   Loop, Scan  unrolled; a Loop ends once the condition is false, which must be known in every
//               iteration
//
// Weights inside of a branch or body become constants: only weights of the main graph are trained.
// https://onnx.ai/onnx/operators/onnx__If.html, https://onnx.ai/onnx/operators/onnx__Loop.html,
// https://onnx.ai/onnx/operators/onnx__Scan.html
Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Sequences and optional values, which exporters leave around tensors. A sequence is a list of
// names, and an index in it must be known. SplitToSequence becomes a Split if the sizes of the
// pieces are known, else an OpenSplit with Slices as pieces.
//
// Resolves SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt,
// SequenceLength, SequenceMap, SplitToSequence, ConcatFromSequence, Optional, OptionalHasElement,
// OptionalGetElement, and Identity of either.
//
// Errors: kInput for an axis or an index that does not exist.
// https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html
bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Returns the body of an operator that ONNX defines as a function of others and that has no kernel
// here. Converts a body of an older opset if an operator in it has changed since. Returns nothing
// if the operator is no function, or if the body is unavailable (unknown input types). Catches the
// exceptions of the ONNX library.
std::optional<std::vector<onnx::NodeProto>> function_body(GraphRewriter& rewriter,
                                                          const onnx::NodeProto& node);

// Replaces calls of the model's own functions by their bodies.
Status inline_local_functions(onnx::ModelProto& model);

}  // namespace ofsdp::importer
