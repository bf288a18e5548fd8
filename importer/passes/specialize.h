// specialize returns the graph for concrete input shapes: every value gets its desc. Nodes that
// depend only on shapes and constants (chains of Shape, Gather, Concat, Reshape) are computed here,
// once, and never in a step. An operator without a kernel is replaced by its body
// (kernels/core/op_def.h). In evaluation, Dropout becomes Identity and BatchNormalization uses the
// running statistics.
//
// bind_inputs finds the shapes. Every input's first axis is the micro-batch. Other symbolic axes
// take the data column's size and must agree for equal symbols.
//
// Errors: kInput naming file, node or input, expected and found.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "importer/file/tensor_record.h"
#include "importer/graph/graph.h"
#include "kernels/base/names.h"

namespace ofsdp::importer {

enum class Mode { kTrain, kEval };

// Returns the input shapes for micro-batches with `batch` samples. `rows`: a sample's shape by
// input name.
Result<std::map<std::string, Shape>> bind_inputs(const Graph& graph,
                                                 const std::map<std::string, Shape>& rows,
                                                 int64_t batch);

// Returns the sample count if the graph fixes the first axis, or -1 if it is symbolic.
int64_t fixed_batch(const Graph& graph);

// `lowering`: the import's, or null.
Result<Graph> specialize(const Graph& graph, const std::map<std::string, Shape>& shapes, Mode mode,
                         const Lowering* lowering = nullptr);

// The weight order in NhwcConv and NhwcFusedConv, which the shape may not tell: [M, kernel..., C /
// group] (last), as ONNX Runtime's `transformers` tool writes them, or [M, C / group, kernel...]
// (first). A file has one order. find_nhwc_order infers the whole graph's shapes with each; a node
// that fits only one decides for all. If both fit, the order is `last`.
//
// Errors: kInput, as from `specialize` with `last`, if neither order fits.

enum class NhwcWeights { kAuto, kLast, kFirst };
OFSDP_ENUM_NAMES(NhwcWeights, {kAuto, "auto"}, {kLast, "last"}, {kFirst, "first"})

// Returns whether the graph has a node with weights in an undecided order.
bool lacks_nhwc_order(const Graph& graph);

// Gives the order to all such nodes. REQUIRES: not kAuto.
Graph with_nhwc_order(const Graph& graph, NhwcWeights order);

struct NhwcOrder {
  NhwcWeights order = NhwcWeights::kLast;
  bool decided = true;  // a node in the file fits only one
};

// Finds a symbolic graph's order. `shapes`: the inputs'. `lowering`: as for specialize.
Result<NhwcOrder> find_nhwc_order(const Graph& graph, const std::map<std::string, Shape>& shapes,
                                  Mode mode, const Lowering* lowering);

// BoundedAxes plans values with a shape that depends on the data (NonZero, Compress, Unique) at
// their bound.
//
// specialize asks it about every node. NonZero over a computed value becomes ofsdp.FoundIndices,
// which returns as many columns as there can be and, at run time, the count; columns after the
// count repeat the last one. Compress and Unique become a Gather by such indices. From there on an
// axis can be *bounded*: only the first factor * count slices are valid, the rest is padding. Three
// rules keep padding from every result and gradient:
//
//   - operators that work slice by slice pass the axis on (carried_axis);
//   - a sum over the axis reads zeros there; a scatter gets one more slice that receives the
//     padding and is cut off, so no gradient flows back to padding either;
//   - a shape read from such a value is the bound while planning, and only a shape may use it.
//
// Exporters write this for experts that pick their tokens: NonZero, Gather, the expert, Scatter.
// Everything else is refused with one line that names the node. CountedShapes marks each shape
// element with the count that it comes from.
//
// REQUIRES: dimensions that must be equal are equal; the file's operators demand it. The graph that
// specialize builds must outlive it. Errors: kInput with file and node.

// Integer values that hold shapes with bounded axes. Each has a bound, a constant, and for each
// element a mark: the count that the element stands for, or none. Operators that only move elements
// (Gather, Slice, Concat, Unsqueeze, ...) move the marks along. A count that the graph computes
// itself, by summing the mask that NonZero reads, gets a mark too.
//
// The graph must outlive it. Errors: kInput with file and node.

// factor * value; value is int64[1] and known at run time.
struct Count {
  ValueId value = 0;
  int64_t factor = 1;

  bool operator==(const Count&) const = default;
};

class CountedShapes {
 public:
  explicit CountedShapes(Graph& graph) : graph_(graph), editor_(graph) {}

  // Records that `value` counts the nonzero elements in `mask`. Returns the count to use for this
  // mask.
  ValueId count_of(ValueId mask, ValueId value) {
    return counted_.try_emplace(root(mask), value).first->second;
  }

  // Remembers values that are a mask with another type or shape, and mask sums.
  void watch(const Node& node) {
    const std::string op = node.op->full_name();
    if (kRestyled.contains(op)) {
      const ValueId from = node.inputs[0];
      const bool known = roots_.contains(from);
      if (known || graph_.value(from).desc.dtype == DType::kBool)
        roots_[node.outputs[0]] = root(from);
    }
    if (op != "ReduceSum" || !roots_.contains(node.inputs[0])) return;
    const TensorDesc& y = graph_.value(node.outputs[0]).desc;
    const auto found = counted_.find(root(node.inputs[0]));
    if (found == counted_.end() || y.dtype != DType::kInt64 || y.numel() != 1) return;
    const int64_t all = graph_.value(node.inputs[0]).desc.numel();
    const int64_t mark = index_of({found->second, 1});
    shapes_[node.outputs[0]] = {make_constant<int64_t>(DType::kInt64, y.shape, {&all, 1}),
                                make_constant<int64_t>(DType::kInt64, y.shape, {&mark, 1}), true};
  }

  bool has(ValueId id) const { return shapes_.contains(id); }
  // Returns whether the value is also right at run time, as a number.
  bool exact(ValueId id) const { return shapes_.at(id).exact; }
  // Enters `node`, a Shape that reads a value with a bounded axis.
  Status shape_of(const Node& node, int axis, Count count) {
    const Shape& shape = graph_.value(node.inputs[0]).desc.shape;
    std::vector<int64_t> marks(static_cast<size_t>(shape.rank()), 0);
    marks[static_cast<size_t>(axis)] = index_of(count);
    OFSDP_ASSIGN_OR_RETURN(auto descs, infer_outputs(graph_, node));
    Value& y = graph_.value(node.outputs[0]);
    y.desc = descs[0];
    OFSDP_RETURN_IF_ERROR(fold(graph_, node));
    const int64_t start = node.attributes.i("start", 0);  // Shape may give a part

    const auto begin =
        std::clamp<int64_t>(start < 0 ? start + shape.rank() : start, 0, shape.rank());
    const std::span<const int64_t> cut(marks.data() + begin, static_cast<size_t>(y.desc.numel()));
    shapes_[node.outputs[0]] = {y.constant, make_constant(DType::kInt64, y.desc.shape, cut), false};
    return {};
  }

  // If the node only moves shape elements, enters the output as a shape and returns true.
  Result<bool> move(const Node& node) {
    if (!is_move(node, graph_)) return false;
    std::vector<ConstantPtr> bounds, marks;
    bool exact = true;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      const auto it = shapes_.find(id);
      if (it != shapes_.end() && !moves(node.op->full_name(), i)) return false;
      if (it != shapes_.end()) exact = exact && it->second.exact;
      ConstantPtr bound = it != shapes_.end() ? it->second.bound : graph_.value(id).constant;
      if (id != 0 && bound == nullptr) return false;
      ConstantPtr mark = bound;
      if (id != 0 && moves(node.op->full_name(), i)) {
        if (bound->desc.dtype != DType::kInt64) return false;
        const std::vector<int64_t> none(static_cast<size_t>(bound->desc.numel()), 0);
        mark = it != shapes_.end() ? it->second.marks
                                   : make_constant<int64_t>(DType::kInt64, bound->desc.shape, none);
      }
      bounds.push_back(std::move(bound));
      marks.push_back(std::move(mark));
    }
    OFSDP_ASSIGN_OR_RETURN(ConstantPtr bound, fold_one(*graph_.registry, node, bounds));
    OFSDP_ASSIGN_OR_RETURN(ConstantPtr mark, fold_one(*graph_.registry, node, marks));
    Value& y = graph_.value(node.outputs[0]);
    y.desc = bound->desc;
    if (exact) {
      graph_.nodes.push_back(node);
    } else {
      y.kind = ValueKind::kConstant;
      y.constant = bound;
    }
    const bool marked = std::ranges::any_of(mark->as<int64_t>(), [](int64_t m) { return m != 0; });
    if (marked) shapes_[node.outputs[0]] = {std::move(bound), std::move(mark), exact};
    return true;
  }

  // Returns a shape's bound as a graph constant.
  ValueId bound(ValueId id) {
    if (graph_.value(id).constant != nullptr) return id;
    return editor_.add_constant(graph_.value(id).name + ".bound", shapes_.at(id).bound);
  }

  // Returns the count that element i stands for.
  std::optional<Count> mark(ValueId id, int64_t i) const {
    const auto it = shapes_.find(id);
    if (it == shapes_.end()) return std::nullopt;
    const int64_t index = it->second.marks->as<int64_t>()[static_cast<size_t>(i)];
    if (index == 0) return std::nullopt;
    return counts_[static_cast<size_t>(index - 1)];
  }

 private:
  const std::set<std::string> kRestyled = {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity"};

  // Returns whether input i holds elements, not indices, if the operator moves elements.
  bool moves(const std::string& op, size_t i) { return op == "Concat" || i == 0; }

  static bool is_move(const Node& node, const Graph& graph) {
    static const std::set<std::string> kMoves = {"Gather",  "Slice",    "Concat", "Unsqueeze",
                                                 "Squeeze", "Identity", "Reshape"};
    const std::string op = node.op->full_name();
    if (op == "Cast") {
      return dtype_from_onnx_number(node.attributes.i("to", 0)) == DType::kInt64 &&
             graph.value(node.inputs[0]).desc.dtype == DType::kInt64;
    }
    return kMoves.contains(op);
  }

  struct Marked {
    ConstantPtr bound;
    ConstantPtr marks;   // int64, the same shape: index in counts_ + 1, or 0
    bool exact = false;  // the run-time value is the true number, not the bound
  };
  int64_t index_of(Count count) {
    auto it = std::ranges::find(counts_, count);
    if (it == counts_.end()) it = counts_.insert(it, count);
    return it - counts_.begin() + 1;
  }

  ValueId root(ValueId mask) const {
    const auto it = roots_.find(mask);
    return it == roots_.end() ? mask : it->second;
  }

  Graph& graph_;
  GraphEditor editor_;
  std::vector<Count> counts_;
  std::map<ValueId, Marked> shapes_;
  std::map<ValueId, ValueId> roots_;    // a bool value in another type or shape -> that value
  std::map<ValueId, ValueId> counted_;  // mask -> count
};

class BoundedAxes {
 public:
  explicit BoundedAxes(Graph& graph) : graph_(graph), editor_(graph), shapes_(graph) {}

  // Returns true if other nodes in the graph replaced `node`. Otherwise the node is an ordinary
  // one; the shape inputs may have become their bounds.
  Result<bool> take(Node& node);
  // Enters an ordinary node. REQUIRES: the outputs have descs.
  void watch(const Node& node);
  // Refuses a graph with an output that has a bounded axis.
  Status check_outputs() const;

 private:
  struct Bounded {
    int axis = 0;
    Count count;
  };
  const Bounded* bounded(ValueId id) const;
  // Returns the data's bounded axis if the node reads or writes slices along it by indices below
  // the count, so it meets no padding; else null.
  const Bounded* indexed_within(const Node& node) const;

  // Nodes that begin a bounded axis: by a count in a shape, or by the elements that they find.
  Result<bool> take_shape(Node& node);
  Status made_of_shape(const Node& node);
  Status find_indices(const Node& node, ValueId x, ValueId indices);
  Status compress(const Node& node);
  Status unique(const Node& node);
  Status gather_found(const Node& node, ValueId indices, Count count);

  // Nodes that read a value with a bounded axis.
  Status take_bounded(const Node& node, ValueId known);
  Status pass_on(const Node& node);
  Status expand(const Node& node);
  Status slice(const Node& node);
  Status split(Node node);
  Status scatter(const Node& node);
  Status sum(Node node);
  Result<ValueId> first_rows(const Node& node, ValueId x, int axis, int64_t rows);
  Attributes counted(const Bounded& bounded, int axis) const;

  // Adds a node. REQUIRES: the values at the outputs exist.
  Status keep(const Node& node);
  Status keep_bounded(const Node& node, int axis, Count count);
  Status refuse(const Node& node, const std::string& why) const;

  Graph& graph_;
  GraphEditor editor_;
  CountedShapes shapes_;
  std::map<ValueId, Bounded> bounded_;
  std::map<ValueId, Count> within_;  // indices, each below the count: Unique's inverse
};

}  // namespace ofsdp::importer
