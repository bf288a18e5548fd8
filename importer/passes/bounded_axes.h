// BoundedAxes: values whose shape depends on the data (NonZero, Compress, Unique), planned at their
// bound.
// specialize asks it about every node. NonZero of a computed value becomes ofsdp.FoundIndices, which
// gives as many columns as there could be and, at run time, their count; the columns behind the
// count repeat the last one. Compress and Unique become a Gather by such indices. From there an axis of a value can be *bounded*: only its first factor *
// count slices are there, what lies behind is padding. Three rules keep padding out of every
// result and of every gradient:
//
//   - operators that work slice by slice pass the axis on (importer/passes/bounded_rules.h);
//   - a sum over the axis sees zeros there; a scatter gets one more slice that takes the padding
//     and is cut off again, so no gradient comes back to padding either;
//   - a shape read from such a value is its bound while planning, and may only be used as a shape.
//
// This is what exporters write for experts that pick their tokens: NonZero, Gather, the expert,
// Scatter. All else is refused with one line that names the node. Shapes are marked element by
// element with the count they come from: importer/passes/counted_shapes.h.
//
// Assumed, since the file's own operators demand it: that dimensions which must be equal are.
//
// Ownership: refers to the graph that specialize builds. Threads: one. Errors: kInput with file and
// node.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "importer/passes/counted_shapes.h"

namespace ofsdp::importer {

class BoundedAxes {
 public:
  explicit BoundedAxes(Graph& graph) : graph_(graph), editor_(graph), shapes_(graph) {}

  // Whether the node was dealt with (what replaces it is in the graph). Otherwise the node, whose
  // shape inputs may have been replaced by their bounds, is an ordinary one.
  Result<bool> take(Node& node);
  // An ordinary node, once its outputs have descs.
  void watch(const Node& node);
  // No output of the graph has a bounded axis.
  Status check_outputs() const;

 private:
  struct Bounded {
    int axis = 0;
    Count count;
  };
  const Bounded* bounded(ValueId id) const;
  // What the node's data have, where it reads or writes slices along the bounded axis by indices
  // that lie below the count: no padding is met. Null: it does not.
  const Bounded* indexed_within(const Node& node) const;
  // Counts in shape inputs: their bounds take their place. Whether the node is done with.
  Result<bool> take_shape(Node& node);
  Status made_of_shape(const Node& node);

  Status find_indices(const Node& node, ValueId x, ValueId indices);
  Status compress(const Node& node);
  Status unique(const Node& node);
  // `node` becomes a Gather along its axis of the slices that `indices` name. Without the attribute
  // its data are laid flat.
  Status gather_found(const Node& node, ValueId indices, Count count);
  Status pass_on(const Node& node);
  Status expand(const Node& node);
  Status slice(const Node& node);
  Status split(Node node);
  Status scatter(const Node& node);
  Status sum(Node node);

  // Adds a node whose outputs exist.
  Status keep(const Node& node);
  Status keep_bounded(const Node& node, int axis, Count count);
  Result<ValueId> first_rows(const Node& node, ValueId x, int axis, int64_t rows);
  ValueId ints(const std::string& name, const std::vector<int64_t>& values);
  Attributes counted(const Bounded& bounded, int axis) const;
  Status refuse(const Node& node, const std::string& why) const;

  Graph& graph_;
  GraphEditor editor_;
  CountedShapes shapes_;
  std::map<ValueId, Bounded> bounded_;
  std::map<ValueId, Count> within_;  // indices, each below the count: Unique's inverse
};

}  // namespace ofsdp::importer
