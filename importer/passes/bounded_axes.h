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

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/graph/fold.h"
#include "importer/graph/graph.h"
#include "importer/graph/graph_uses.h"
#include "importer/passes/bounded_rules.h"
#include "importer/passes/counted_shapes.h"
#include "kernels/base/budgets.h"

namespace ofsdp::importer {

class BoundedAxes {
 public:
  explicit BoundedAxes(Graph& graph) : graph_(graph), editor_(graph), shapes_(graph) {}

  // Returns true when the graph has other nodes in its place. Otherwise the node is an ordinary
  // one, whose shape inputs may have been replaced by their bounds.
  Result<bool> take(Node& node) {
    const std::string op = node.op->full_name();
    const bool finds = op == "NonZero" || op == "Compress" || op == "Unique";
    const ValueId looked_in =
        !finds || node.inputs.empty() ? 0 : node.inputs[op == "Compress" ? 1 : 0];
    if (looked_in != 0 && graph_.value(looked_in).constant == nullptr) {
      if (std::ranges::any_of(node.inputs, [&](ValueId id) { return bounded(id) != nullptr; })) {
        return refuse(node, "looks in a value whose own size only the run knows");
      }
      OFSDP_RETURN_IF_ERROR(op == "NonZero"    ? find_indices(node, looked_in, node.outputs[0])
                            : op == "Compress" ? compress(node)
                                               : unique(node));
      return true;
    }
    const auto known = std::ranges::find_if(node.inputs, [&](ValueId id) { return bounded(id); });
    if (op == "Shape" && known != node.inputs.end()) {
      const Bounded& x = *bounded(*known);
      OFSDP_RETURN_IF_ERROR(shapes_.shape_of(node, x.axis, x.count));
      return true;
    }
    OFSDP_ASSIGN_OR_RETURN(const bool done, take_shape(node));
    if (done || known == node.inputs.end()) return done;
    if (const Bounded* whole = indexed_within(node)) {
      OFSDP_RETURN_IF_ERROR(op == "Gather" ? keep(node)
                                           : keep_bounded(node, whole->axis, whole->count));
    } else if (takes_numbers(op) && bounded(node.inputs[0]) == nullptr) {
      return refuse(node, format_text("takes its numbers from '{}', whose own size only the run "
                                      "knows",
                                      graph_.value(*known).name));
    } else if (op == "Expand") {
      OFSDP_RETURN_IF_ERROR(expand(node));
    } else if (op == "Slice") {
      OFSDP_RETURN_IF_ERROR(slice(node));
    } else if (op == "Split") {
      OFSDP_RETURN_IF_ERROR(split(node));
    } else if (op == "ScatterND" || op == "ScatterElements") {
      OFSDP_RETURN_IF_ERROR(scatter(node));
    } else if (op == "ReduceSum") {
      OFSDP_RETURN_IF_ERROR(sum(node));
    } else {
      OFSDP_RETURN_IF_ERROR(pass_on(node));
    }
    return true;
  }

  // Inputs after the first say which elements of the first, or how many.
  static bool takes_numbers(const std::string& op) {
    return op == "Expand" || op == "Slice" || op == "Split" || op == "ReduceSum";
  }

  // An ordinary node, once its outputs have descs.
  void watch(const Node& node) {
    static const std::set<std::string> kElements = {"Reshape",  "Flatten",   "Squeeze", "Unsqueeze",
                                                    "Identity", "Transpose", "Slice",   "Gather"};
    shapes_.watch(node);
    if (!kElements.contains(node.op->full_name())) return;
    const auto it = within_.find(node.inputs[0]);
    if (it != within_.end()) within_[node.outputs[0]] = it->second;
  }

  // No output of the graph has a bounded axis.
  Status check_outputs() const {
    for (ValueId id : graph_.outputs) {
      const Bounded* found = bounded(id);
      if (found == nullptr) continue;
      return input_error("{}: the size of axis {} of output '{}' depends on the data", graph_.file,
                         found->axis, graph_.value(id).name);
    }
    return {};
  }

 private:
  struct Bounded {
    int axis = 0;
    Count count;
  };
  const Bounded* bounded(ValueId id) const {
    const auto it = bounded_.find(id);
    return it == bounded_.end() ? nullptr : &it->second;
  }

  // Returns the bounded axis of the node's data when the node reads or writes slices along it by
  // indices below the count, which meet no padding; else null.
  const Bounded* indexed_within(const Node& node) const {
    const std::string op = node.op->full_name();
    if (op != "Gather" && op != "ScatterElements" && op != "ScatterND") return nullptr;
    const Bounded* data = bounded(node.inputs[0]);
    const auto index = within_.find(node.inputs[1]);
    if (data == nullptr || index == within_.end() || !(index->second == data->count))
      return nullptr;
    if (op != "Gather" && bounded(node.inputs[2]) != nullptr) return nullptr;
    const Shape& indices = graph_.value(node.inputs[1]).desc.shape;
    if (op == "ScatterND") {
      return data->axis == 0 && indices[indices.rank() - 1] == 1 ? data : nullptr;
    }
    const auto axis = normalize_axis(node.attributes.i("axis", 0),
                                     graph_.value(node.inputs[0]).desc.shape.rank());
    return axis.ok() && *axis == data->axis ? data : nullptr;
  }

  // Replaces counts in shape inputs by their bounds. Returns whether the node is finished.
  Result<bool> take_shape(Node& node) {
    const std::string op = node.op->full_name();
    if (std::ranges::none_of(node.inputs, [&](ValueId id) { return shapes_.has(id); }))
      return false;
    OFSDP_ASSIGN_OR_RETURN(const bool moved, shapes_.move(node));
    if (moved) return true;
    const bool makes = op == "ConstantOfShape" || op == "Range" ||
                       (op == "Expand" && bounded(node.inputs[0]) == nullptr);
    const bool reads = makes || (bounded(node.inputs[0]) != nullptr &&
                                 (op == "Reshape" || op == "Expand" || op == "Slice"));
    if (makes) {
      OFSDP_RETURN_IF_ERROR(made_of_shape(node));
      return true;
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (!shapes_.has(id) || reads || shapes_.exact(id)) continue;
      return refuse(node, format_text("computes with '{}', a number of elements that only the run "
                                      "knows",
                                      graph_.value(id).name));
    }
    return false;
  }

  // ConstantOfShape, Range and Expand of what has no bounded axis.
  Status made_of_shape(const Node& node) {
    const std::string op = node.op->full_name();
    const size_t input = op == "ConstantOfShape" ? 0 : 1;
    const ValueId shape = node.inputs[input];
    Node made = node;
    if (!shapes_.has(shape)) return refuse(node, "starts from a number that only the run knows");
    made.inputs[input] = shapes_.bound(shape);
    int axis = -1;
    Count count;
    for (int64_t i = 0; i < graph_.value(shape).desc.numel(); ++i) {
      const auto mark = shapes_.mark(shape, i);
      if (!mark) continue;
      if (axis >= 0) return refuse(node, "has two axes whose sizes only the run knows");
      axis = static_cast<int>(i);
      count = *mark;
    }
    if (op == "Range") {
      const auto one = [&](size_t i) { return int_values(*graph_.value(node.inputs[i]).constant); };
      for (size_t i : {0, 2}) {
        const bool fits = graph_.value(node.inputs[i]).constant != nullptr && one(i).ok() &&
                          one(i)->size() == 1 && (*one(i))[0] == (i == 0 ? 0 : 1);
        if (!fits) return refuse(node, "counts to a number that only the run knows, not 0, 1, ...");
      }
    }
    if (op == "Expand") {
      const Shape& x = graph_.value(node.inputs[0]).desc.shape;
      const auto length = static_cast<int>(graph_.value(shape).desc.numel());
      axis += std::max(x.rank() - length, 0);
      const int own = axis - std::max(length - x.rank(), 0);
      if (own >= 0 && x[own] != 1) return refuse(node, "expands to a size that only the run knows");
    }
    return keep_bounded(made, axis, count);
  }

  Status find_indices(const Node& node, ValueId x, ValueId indices) {
    const ValueId count =
        editor_.add_value({graph_.value(indices).name + ".count", ValueKind::kActivation, {}});
    const Node found{
        &graph_.registry->get("ofsdp.FoundIndices"), node.name, {}, {x}, {indices, count}, false};
    OFSDP_RETURN_IF_ERROR(keep(found));
    bounded_[indices] = {1, {shapes_.count_of(x, count), 1}};
    return {};
  }

  // A Gather of what the condition finds.
  Status compress(const Node& node) {
    const ValueId found = editor_.add_value({node.name + ".found", ValueKind::kActivation, {}});
    OFSDP_RETURN_IF_ERROR(find_indices(node, node.inputs[1], found));
    OFSDP_ASSIGN_OR_RETURN(const ValueId indices,
                           editor_.add1("Squeeze", node.name + ".indices",
                                        {found, add_ints(graph_, node.name + ".axis", {0})}));
    return gather_found(node, indices, bounded_.at(found).count);
  }

  // The gradient goes to the slices that appear first.
  Status unique(const Node& node) {
    const auto output = [&](size_t i, const char* otherwise) {
      if (i < node.outputs.size() && node.outputs[i] != 0) return node.outputs[i];
      return editor_.add_value({node.name + otherwise, ValueKind::kActivation, {}});
    };
    const ValueId first = output(1, ".first"), counts = output(3, ".counts");
    const Count count{output(4, ".count"), 1};
    const ValueId inverse = output(2, ".inverse");
    const Node found{&graph_.registry->get("ofsdp.FoundUnique"),
                     node.name + ".found",
                     node.attributes,
                     {node.inputs[0]},
                     {first, inverse, counts, count.value},
                     false};
    OFSDP_RETURN_IF_ERROR(keep(found));
    bounded_[first] = bounded_[counts] = {0, count};
    within_[inverse] = count;
    return node.outputs[0] == 0 ? Status{} : gather_found(node, first, count);
  }

  // `node` becomes a Gather along its axis of the slices that `indices` name. Without the attribute
  // its data are laid flat.
  Status gather_found(const Node& node, ValueId indices, Count count) {
    ValueId x = node.inputs[0];
    const int64_t rank = graph_.value(x).desc.shape.rank();
    int64_t axis = node.attributes.i("axis", 0);
    if (!node.attributes.has("axis")) {
      OFSDP_ASSIGN_OR_RETURN(x, editor_.add1("Reshape", node.name + ".flat",
                                             {x, add_ints(graph_, node.name + ".shape", {-1})}));
    } else if (axis < 0) {
      axis += rank;
    }
    const OpDef& op = graph_.registry->get("Gather");
    const Node gather{&op, node.name, {{"axis", axis}}, {x, indices}, {node.outputs[0]}};
    return keep_bounded(gather, static_cast<int>(axis), count);
  }

  Status pass_on(const Node& node) {
    OFSDP_RETURN_IF_ERROR(keep(node));
    std::optional<Bounded> found;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Bounded* x = bounded(node.inputs[i]);
      if (x == nullptr) continue;
      const auto carried = carried_axis(graph_, node, i, x->axis);
      if (!carried || x->count.factor * carried->times % carried->over != 0) {
        return refuse(
            node, format_text("works along axis {} of '{}', whose size only the run knows", x->axis,
                              graph_.value(node.inputs[i]).name));
      }
      const Count count{x->count.value, x->count.factor * carried->times / carried->over};
      if (found && (found->axis != carried->axis || found->count != count)) {
        return refuse(node, "combines two sizes that only the run knows");
      }
      found = Bounded{carried->axis, count};
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == 0 || bounded(node.inputs[i]) != nullptr) continue;
      if (fits_axis(graph_, node, i, found->axis)) continue;
      return refuse(node, format_text("combines '{}' with an axis whose size only the run knows",
                                      graph_.value(node.inputs[i]).name));
    }
    for (ValueId id : node.outputs) {
      if (id != 0) bounded_[id] = *found;
    }
    return {};
  }

  Status expand(const Node& node) {
    const Bounded x = *bounded(node.inputs[0]);
    const ValueId shape = node.inputs[1];
    const int rank = graph_.value(node.inputs[0]).desc.shape.rank();
    Node made = node;
    if (shapes_.has(shape)) made.inputs[1] = shapes_.bound(shape);
    if (graph_.value(made.inputs[1]).constant == nullptr) return keep(made);  // refused by infer
    OFSDP_ASSIGN_OR_RETURN(const auto sizes, int_values(*graph_.value(made.inputs[1]).constant));
    const auto length = static_cast<int>(sizes.size());
    const int at = length - rank + x.axis;
    for (int i = 0; i < length; ++i) {
      const auto mark = shapes_.mark(shape, i);
      const bool fits = i == at ? mark == x.count || (!mark && sizes[static_cast<size_t>(i)] == 1)
                                : !mark.has_value();
      if (!fits) return refuse(node, "expands an axis whose size only the run knows");
    }
    return keep_bounded(made, x.axis + std::max(length - rank, 0), x.count);
  }

  // Cuts other axes as usual; the bounded one may only be cut to another count, from its front.
  Status slice(const Node& node) {
    Bounded x = *bounded(node.inputs[0]);
    const Shape shape = graph_.value(node.inputs[0]).desc.shape;
    Node made = node;
    std::vector<std::vector<int64_t>> numbers(std::max<size_t>(node.inputs.size(), 5));
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == 0) continue;
      if (shapes_.has(node.inputs[i])) made.inputs[i] = shapes_.bound(node.inputs[i]);
      const ConstantPtr known = graph_.value(made.inputs[i]).constant;
      if (known == nullptr) return keep(made);  // refused by infer
      OFSDP_ASSIGN_OR_RETURN(numbers[i], int_values(*known));
      const bool absent = i > 2 && numbers[i].empty();
      if (!absent && numbers[i].size() != numbers[1].size()) return keep(made);  // refused by infer
    }
    for (size_t k = 0; k < numbers[1].size(); ++k) {
      const int64_t named = numbers[3].empty() ? static_cast<int64_t>(k) : numbers[3][k];
      if ((named < 0 ? named + shape.rank() : named) != x.axis) continue;
      const auto end = shapes_.mark(node.inputs[2], static_cast<int64_t>(k));
      const bool front = numbers[1][k] == 0 && (numbers[4].empty() || numbers[4][k] == 1);
      if (!front || (!end && numbers[2][k] < shape[x.axis])) {
        return refuse(node, "cuts an axis whose size only the run knows");
      }
      if (end) x.count = *end;
    }
    return keep_bounded(made, x.axis, x.count);
  }

  // Along the bounded axis the file has a fixed number; the run checks it.
  Status split(Node node) {
    const Bounded x = *bounded(node.inputs[0]);
    const Shape shape = graph_.value(node.inputs[0]).desc.shape;
    OFSDP_ASSIGN_OR_RETURN(const int axis,
                           normalize_axis(node.attributes.i("axis", 0), shape.rank()));
    if (axis != x.axis) return pass_on(node);
    const bool sized =
        node.inputs.size() > 1 && node.inputs[1] != 0 && !shapes_.has(node.inputs[1]);
    if (!sized || graph_.value(node.inputs[1]).constant == nullptr) {
      return refuse(node, "splits an axis whose size only the run knows");
    }
    OFSDP_ASSIGN_OR_RETURN(const auto sizes, int_values(*graph_.value(node.inputs[1]).constant));
    int64_t expected = 0;
    for (int64_t size : sizes) expected += size;
    Attributes attributes = counted(x, axis);
    attributes.set("expected", expected);
    OFSDP_ASSIGN_OR_RETURN(node.inputs[0],
                           editor_.add1("ofsdp.RequireCount", node.name + ".checked",
                                        {node.inputs[0], x.count.value}, attributes));
    if (expected < shape[axis]) {
      OFSDP_ASSIGN_OR_RETURN(node.inputs[0], first_rows(node, node.inputs[0], axis, expected));
    }
    return keep(node);
  }

  // Scatters into data with one more slice, which takes the padding and is cut off.
  Status scatter(const Node& node) {
    const Bounded* indices = bounded(node.inputs[1]);
    const bool tuples = node.op->full_name() == "ScatterND";
    const Shape& index = graph_.value(node.inputs[1]).desc.shape;
    if (indices == nullptr || bounded(node.inputs[0]) != nullptr ||
        (tuples && indices->axis == index.rank() - 1)) {
      return refuse(node, "scatters along an axis whose size only the run knows");
    }
    const TensorDesc data = graph_.value(node.inputs[0]).desc;
    OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(tuples ? 0 : node.attributes.i("axis", 0),
                                                          data.shape.rank()));
    std::vector<int64_t> dims{data.shape[axis]};
    if (tuples) {
      const auto components = std::min<int64_t>(index[index.rank() - 1], data.shape.rank());
      dims.assign(data.shape.axes().begin(), data.shape.axes().begin() + components);
    }
    if (dims.empty()) return refuse(node, "scatters tuples of nothing");
    Constant zeros{data, {}};
    zeros.desc.shape[axis] = 1;
    if (zeros.desc.numel() > kMostFolded) {
      return refuse(node, "scatters into more elements than may be known while planning");
    }
    zeros.bytes.resize(zeros.desc.bytes());
    const ValueId spare = editor_.add_constant(node.name + ".spare",
                                               std::make_shared<const Constant>(std::move(zeros)));
    OFSDP_ASSIGN_OR_RETURN(const ValueId larger,
                           editor_.add1("Concat", node.name + ".larger", {node.inputs[0], spare},
                                        {{"axis", int64_t{axis}}}));
    Attributes attributes = counted(*indices, indices->axis);
    attributes.set("dims", dims);
    OFSDP_ASSIGN_OR_RETURN(const ValueId places,
                           editor_.add1("ofsdp.ScatterIndices", node.name + ".places",
                                        {node.inputs[1], indices->count.value}, attributes));
    OFSDP_ASSIGN_OR_RETURN(const ValueId scattered,
                           editor_.add1(node.op->full_name(), node.name,
                                        {larger, places, node.inputs[2]}, node.attributes));
    OFSDP_ASSIGN_OR_RETURN(const ValueId rows, first_rows(node, scattered, axis, dims[0]));
    graph_.nodes.back().outputs = node.outputs;
    graph_.value(node.outputs[0]).desc = graph_.value(rows).desc;
    return {};
  }

  Status sum(Node node) {
    const Bounded x = *bounded(node.inputs[0]);
    const int rank = graph_.value(node.inputs[0]).desc.shape.rank();
    std::vector<int64_t> axes;
    if (node.inputs.size() > 1 && node.inputs[1] != 0) {
      const ConstantPtr known = graph_.value(node.inputs[1]).constant;
      if (known == nullptr) return keep(node);  // refused by infer
      OFSDP_ASSIGN_OR_RETURN(axes, int_values(*known));
    }
    const bool along = axes.empty() || std::ranges::any_of(axes, [&](int64_t axis) {
                         return (axis < 0 ? axis + rank : axis) == x.axis;
                       });
    if (!along) return pass_on(node);
    OFSDP_ASSIGN_OR_RETURN(node.inputs[0],
                           editor_.add1("ofsdp.KeepCounted", node.name + ".kept",
                                        {node.inputs[0], x.count.value}, counted(x, x.axis)));
    return keep(node);
  }

  // Adds a node whose outputs exist.
  Status keep(const Node& node) {
    OFSDP_RETURN_IF_ERROR(infer_descs(graph_, node).status());
    if (node.op->shape_only) return fold(graph_, node);
    graph_.nodes.push_back(node);
    return {};
  }

  Status keep_bounded(const Node& node, int axis, Count count) {
    OFSDP_RETURN_IF_ERROR(keep(node));
    for (ValueId id : node.outputs) {
      if (id != 0) bounded_[id] = {axis, count};
    }
    return {};
  }

  Result<ValueId> first_rows(const Node& node, ValueId x, int axis, int64_t rows) {
    const std::string& name = node.name;
    return editor_.add1(
        "Slice", name + ".rows",
        {x, add_ints(graph_, name + ".begin", {0}), add_ints(graph_, name + ".end", {rows}),
         add_ints(graph_, name + ".axes", {axis})});
  }

  // --- the operators that find, cut, spread, sum over or scatter along a bounded axis ---
  Attributes counted(const Bounded& bounded, int axis) const {
    return {{"axis", int64_t{axis}}, {"factor", bounded.count.factor}};
  }

  Status refuse(const Node& node, const std::string& why) const {
    return input_error("{}", why).with_prefix(graph_.describe(node));
  }

  Graph& graph_;
  GraphEditor editor_;
  CountedShapes shapes_;
  std::map<ValueId, Bounded> bounded_;
  std::map<ValueId, Count> within_;  // indices, each below the count: Unique's inverse
};

}  // namespace ofsdp::importer
