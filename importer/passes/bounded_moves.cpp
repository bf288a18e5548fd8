// The operators that importer/passes/bounded_axes.h rewrites: those that find, cut, spread, sum over or
// scatter along a bounded axis.
#include <algorithm>

#include "importer/passes/bounded_axes.h"

namespace ofsdp::importer {

Attributes BoundedAxes::counted(const Bounded& bounded, int axis) const {
  return {{"axis", int64_t{axis}}, {"factor", bounded.count.factor}};
}

Status BoundedAxes::find_indices(const Node& node, ValueId x, ValueId indices) {
  const ValueId count =
      editor_.add_value({graph_.value(indices).name + ".count", ValueKind::kActivation, {}});
  const Node found{
      &graph_.registry->get("ofsdp.FoundIndices"), node.name, {}, {x}, {indices, count}, false};
  OFSDP_RETURN_IF_ERROR(keep(found));
  bounded_[indices] = {1, {shapes_.count_of(x, count), 1}};
  return {};
}

// A Gather of what the condition finds.
Status BoundedAxes::compress(const Node& node) {
  const ValueId found = editor_.add_value({node.name + ".found", ValueKind::kActivation, {}});
  OFSDP_RETURN_IF_ERROR(find_indices(node, node.inputs[1], found));
  OFSDP_ASSIGN_OR_RETURN(
      const ValueId indices,
      editor_.add1("Squeeze", node.name + ".indices", {found, ints(node.name + ".axis", {0})}));
  return gather_found(node, indices, bounded_.at(found).count);
}

// Its gradient goes to the slices that appear first.
Status BoundedAxes::unique(const Node& node) {
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

Status BoundedAxes::gather_found(const Node& node, ValueId indices, Count count) {
  ValueId x = node.inputs[0];
  const int64_t rank = graph_.value(x).desc.shape.rank();
  int64_t axis = node.attributes.i("axis", 0);
  if (!node.attributes.has("axis")) {
    OFSDP_ASSIGN_OR_RETURN(
        x, editor_.add1("Reshape", node.name + ".flat", {x, ints(node.name + ".shape", {-1})}));
  } else if (axis < 0) {
    axis += rank;
  }
  const Node gather{&graph_.registry->get("Gather"),
                    node.name,
                    {{"axis", axis}},
                    {x, indices},
                    {node.outputs[0]},
                    false};
  return keep_bounded(gather, static_cast<int>(axis), count);
}

Status BoundedAxes::expand(const Node& node) {
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

// Other axes are cut as ever; the bounded one may only be cut to another count, from its front.
Status BoundedAxes::slice(const Node& node) {
  Bounded x = *bounded(node.inputs[0]);
  const Shape shape = graph_.value(node.inputs[0]).desc.shape;
  Node made = node;
  std::vector<std::vector<int64_t>> numbers(5);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == 0) continue;
    if (shapes_.has(node.inputs[i])) made.inputs[i] = shapes_.bound(node.inputs[i]);
    const ConstantPtr known = graph_.value(made.inputs[i]).constant;
    if (known == nullptr) return keep(made);  // refused by infer
    OFSDP_ASSIGN_OR_RETURN(numbers[i], int_values(*known));
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

Result<ValueId> BoundedAxes::first_rows(const Node& node, ValueId x, int axis, int64_t rows) {
  const std::string& name = node.name;
  return editor_.add1(
      "Slice", name + ".rows",
      {x, ints(name + ".begin", {0}), ints(name + ".end", {rows}), ints(name + ".axes", {axis})});
}

// Along the bounded axis the file has a number written down: the run checks it.
Status BoundedAxes::split(Node node) {
  const Bounded x = *bounded(node.inputs[0]);
  const Shape shape = graph_.value(node.inputs[0]).desc.shape;
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(node.attributes.i("axis", 0), shape.rank()));
  if (axis != x.axis) return pass_on(node);
  const bool sized = node.inputs.size() > 1 && node.inputs[1] != 0 && !shapes_.has(node.inputs[1]);
  if (!sized || graph_.value(node.inputs[1]).constant == nullptr) {
    return refuse(node, "splits an axis whose size only the run knows");
  }
  OFSDP_ASSIGN_OR_RETURN(const auto sizes, int_values(*graph_.value(node.inputs[1]).constant));
  int64_t expected = 0;
  for (int64_t size : sizes) expected += size;
  Attributes attributes = counted(x, axis);
  attributes.set("expected", expected);
  OFSDP_ASSIGN_OR_RETURN(node.inputs[0], editor_.add1("ofsdp.RequireCount", node.name + ".checked",
                                                      {node.inputs[0], x.count.value}, attributes));
  if (expected < shape[axis]) {
    OFSDP_ASSIGN_OR_RETURN(node.inputs[0], first_rows(node, node.inputs[0], axis, expected));
  }
  return keep(node);
}

Status BoundedAxes::sum(Node node) {
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

// Into data with one more slice, which takes the padding and is cut off.
Status BoundedAxes::scatter(const Node& node) {
  const Bounded* indices = bounded(node.inputs[1]);
  const bool tuples = node.op->full_name() == "ScatterND";
  const Shape& index = graph_.value(node.inputs[1]).desc.shape;
  if (indices == nullptr || bounded(node.inputs[0]) != nullptr ||
      (tuples && indices->axis == index.rank() - 1)) {
    return refuse(node, "scatters along an axis whose size only the run knows");
  }
  const TensorDesc data = graph_.value(node.inputs[0]).desc;
  OFSDP_ASSIGN_OR_RETURN(
      const int axis, normalize_axis(tuples ? 0 : node.attributes.i("axis", 0), data.shape.rank()));
  std::vector<int64_t> dims{data.shape[axis]};
  if (tuples) {
    const auto components = std::min<int64_t>(index[index.rank() - 1], data.shape.rank());
    dims.assign(data.shape.axes().begin(), data.shape.axes().begin() + components);
  }
  if (dims.empty()) return refuse(node, "scatters tuples of nothing");
  Constant zeros{data, {}};
  zeros.desc.shape[axis] = 1;
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

}  // namespace ofsdp::importer
