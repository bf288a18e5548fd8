// BoundedAxes: values whose shape depends on the data (NonZero, Compress, Unique), planned at their
// bound.
//
// specialize asks it about every node. NonZero of a computed value becomes ofsdp.FoundIndices. That
// operator gives the most columns there can be and, at run time, their count; columns after the
// count repeat the last one. Compress and Unique become a Gather by such indices. From there on, an
// axis of a value can be *bounded*: only its first factor * count slices are there, the rest is
// padding. Three rules keep padding out of every result and of every gradient:
//
//   - operators that work slice by slice pass the axis on (bounded_rules.h);
//   - a sum over the axis reads zeros there; a scatter gets one more slice, which takes the padding
//     and is cut off again, so no gradient comes back to padding either;
//   - a shape read from such a value is its bound while planning and may only be used as a shape.
//
// Exporters write this for experts that pick their tokens: NonZero, Gather, the expert, Scatter.
// Everything else is refused with one line that names the node. Shapes are marked element by
// element with the count they come from: counted_shapes.h.
//
// REQUIRES: dimensions that must be equal are equal; the operators of the file demand it.
//
// Refers to the graph that specialize builds. Threads: one. Errors: kInput with file and node.
#pragma once

#include <map>
#include <string>

#include "importer/graph/graph.h"
#include "importer/passes/counted_shapes.h"

namespace ofsdp::importer {

class BoundedAxes {
 public:
  explicit BoundedAxes(Graph& graph) : graph_(graph), editor_(graph), shapes_(graph) {}

  // Returns true when the graph has other nodes in its place. Otherwise the node is an ordinary
  // one, whose shape inputs may have been replaced by their bounds.
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
  // Returns the bounded axis of the node's data when the node reads or writes slices along it by
  // indices below the count, which meet no padding; else null.
  const Bounded* indexed_within(const Node& node) const;

  // Nodes that begin a bounded axis: by a count in a shape, or by what they find.
  Result<bool> take_shape(Node& node);
  Status made_of_shape(const Node& node);
  Status find_indices(const Node& node, ValueId x, ValueId indices);
  Status compress(const Node& node);
  Status unique(const Node& node);
  Status gather_found(const Node& node, ValueId indices, Count count);

  // Nodes of values that have one: bounded_operators.cpp.
  Status take_bounded(const Node& node, ValueId known);
  Status pass_on(const Node& node);
  Status expand(const Node& node);
  Status slice(const Node& node);
  Status split(Node node);
  Status scatter(const Node& node);
  Status sum(Node node);
  Result<ValueId> first_rows(const Node& node, ValueId x, int axis, int64_t rows);
  Attributes counted(const Bounded& bounded, int axis) const;

  // Adds a node whose outputs exist.
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
