// CountedShapes: integer values that hold shapes of bounded axes (importer/passes/bounded_axes.h).
// Each has its bound, a constant, and a mark per element: the count that the element means, or
// none. Operators that only move elements (Gather, Slice, Concat, Unsqueeze, ...) move the marks
// along. A count that the graph computes itself (the sum of the mask that NonZero reads) is marked
// too.
//
// Ownership: refers to the graph. Threads: one. Errors: kInput with file and node.
#pragma once

#include <map>
#include <optional>
#include <vector>

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
  ValueId count_of(ValueId mask, ValueId value);
  // Remembers which values are a mask with another type or shape, and which are its sum.
  void watch(const Node& node);

  bool has(ValueId id) const { return shapes_.contains(id); }
  // Whether the value is right at run time too, as a number.
  bool exact(ValueId id) const { return shapes_.at(id).exact; }
  // `node` is the Shape of a value with a bounded axis.
  Status shape_of(const Node& node, int axis, Count count);
  // Whether the node only moves elements of shapes, so that its output is one.
  Result<bool> move(const Node& node);
  // The bound of a shape as a constant value of the graph.
  ValueId bound(ValueId id);
  // Returns the count that element i means.
  std::optional<Count> mark(ValueId id, int64_t i) const;

 private:
  struct Marked {
    ConstantPtr bound;
    ConstantPtr marks;   // int64, the same shape: index in counts_ + 1, or 0
    bool exact = false;  // the run-time value is the true number, not the bound
  };
  int64_t index_of(Count count);
  ValueId root(ValueId mask) const;

  Graph& graph_;
  GraphEditor editor_;
  std::vector<Count> counts_;
  std::map<ValueId, Marked> shapes_;
  std::map<ValueId, ValueId> roots_;    // a bool value in another type or shape -> that value
  std::map<ValueId, ValueId> counted_;  // mask -> its count
};

}  // namespace ofsdp::importer
