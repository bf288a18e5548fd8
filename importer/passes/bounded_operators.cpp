// The part of BoundedAxes for operators that cut, spread, sum over or scatter along a bounded axis
// of their inputs, and for those that pass it on.
#include <algorithm>
#include <optional>

#include "importer/graph/fold.h"
#include "importer/graph/graph_uses.h"
#include "importer/passes/bounded_axes.h"
#include "importer/passes/bounded_rules.h"
#include "kernels/base/budgets.h"

namespace ofsdp::importer {
namespace {

// Inputs after the first say which elements of the first, or how many.
bool takes_numbers(const std::string& op) {
  return op == "Expand" || op == "Slice" || op == "Split" || op == "ReduceSum";
}

}  // namespace

Status BoundedAxes::take_bounded(const Node& node, ValueId known) {
  const std::string op = node.op->full_name();
  if (const Bounded* whole = indexed_within(node)) {
    return op == "Gather" ? keep(node) : keep_bounded(node, whole->axis, whole->count);
  }
  if (takes_numbers(op) && bounded(node.inputs[0]) == nullptr) {
    return refuse(node, format_text("takes its numbers from '{}', whose own size only the run "
                                    "knows",
                                    graph_.value(known).name));
  }
  if (op == "Expand") return expand(node);
  if (op == "Slice") return slice(node);
  if (op == "Split") return split(node);
  if (op == "ScatterND" || op == "ScatterElements") return scatter(node);
  if (op == "ReduceSum") return sum(node);
  return pass_on(node);
}

Status BoundedAxes::pass_on(const Node& node) {
  OFSDP_RETURN_IF_ERROR(keep(node));
  std::optional<Bounded> found;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Bounded* x = bounded(node.inputs[i]);
    if (x == nullptr) continue;
    const auto carried = carried_axis(graph_, node, i, x->axis);
    if (!carried || x->count.factor * carried->times % carried->over != 0) {
      return refuse(node, format_text("works along axis {} of '{}', whose size only the run knows",
                                      x->axis, graph_.value(node.inputs[i]).name));
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

// Cuts other axes as usual; the bounded one may only be cut to another count, from its front.
Status BoundedAxes::slice(const Node& node) {
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

// Scatters into data with one more slice, which takes the padding and is cut off.
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
  OFSDP_RETURN_IF_ERROR(first_rows(node, scattered, axis, dims[0]).status());
  Node giving = graph_.nodes.back();
  giving.outputs = node.outputs;
  return editor_.change_descs(graph_.nodes.back(), std::move(giving));
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

Result<ValueId> BoundedAxes::first_rows(const Node& node, ValueId x, int axis, int64_t rows) {
  const std::string& name = node.name;
  return editor_.add1(
      "Slice", name + ".rows",
      {x, add_ints(graph_, name + ".begin", {0}), add_ints(graph_, name + ".end", {rows}),
       add_ints(graph_, name + ".axes", {axis})});
}

Attributes BoundedAxes::counted(const Bounded& bounded, int axis) const {
  return {{"axis", int64_t{axis}}, {"factor", bounded.count.factor}};
}

}  // namespace ofsdp::importer
