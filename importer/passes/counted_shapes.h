// CountedShapes: integer values that hold shapes of bounded axes (importer/passes/bounded_axes.h).
// Each has its bound, a constant, and a mark per element: the count that the element means, or
// none. Operators that only move elements (Gather, Slice, Concat, Unsqueeze, ...) move the marks
// along. A count that the graph computes itself (the sum of the mask that NonZero reads) is marked
// too.
//
// Ownership: refers to the graph. Threads: one. Errors: kInput with file and node.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "importer/file/tensor_record.h"
#include "importer/graph/fold.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

// factor * value, where value is int64[1], known at run time.
struct Count {
  ValueId value = 0;
  int64_t factor = 1;

  bool operator==(const Count&) const = default;
};

class CountedShapes {
 public:
  explicit CountedShapes(Graph& graph) : graph_(graph), editor_(graph) {}

  // The count of elements of `mask` that are not 0 is `value`; gives the one to use for this mask.
  ValueId count_of(ValueId mask, ValueId value) {
    return counted_.try_emplace(root(mask), value).first->second;
  }

  // Remembers which values are a mask with another type or shape, and which are its sum.
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
  // Whether the value is right at run time too, as a number.
  bool exact(ValueId id) const { return shapes_.at(id).exact; }
  // `node` is the Shape of a value with a bounded axis.
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

  // Whether the node only moves elements of shapes, so that its output is one.
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

  // The bound of a shape as a constant value of the graph.
  ValueId bound(ValueId id) {
    if (graph_.value(id).constant != nullptr) return id;
    return editor_.add_constant(graph_.value(id).name + ".bound", shapes_.at(id).bound);
  }

  // Returns the count that element i means.
  std::optional<Count> mark(ValueId id, int64_t i) const {
    const auto it = shapes_.find(id);
    if (it == shapes_.end()) return std::nullopt;
    const int64_t index = it->second.marks->as<int64_t>()[static_cast<size_t>(i)];
    if (index == 0) return std::nullopt;
    return counts_[static_cast<size_t>(index - 1)];
  }

 private:
  const std::set<std::string> kRestyled = {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity"};

  // Whether input i of an operator that moves elements holds elements, not positions.
  bool moves(const std::string& op, size_t i) { return op == "Concat" || i == 0; }

  static bool is_move(const Node& node, const Graph& graph) {
    static const std::set<std::string> kMoves = {"Gather",  "Slice",    "Concat", "Unsqueeze",
                                                 "Squeeze", "Identity", "Reshape"};
    const std::string op = node.op->full_name();
    if (op == "Cast") {
      return dtype_of_number(node.attributes.i("to", 0)) == DType::kInt64 &&
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
  std::map<ValueId, ValueId> counted_;  // mask -> its count
};

}  // namespace ofsdp::importer
