#include "importer/passes/bounded_axes.h"

#include <algorithm>
#include <set>

#include "importer/graph/fold.h"
#include "importer/passes/bounded_rules.h"

namespace ofsdp::importer {

const BoundedAxes::Bounded* BoundedAxes::bounded(ValueId id) const {
  const auto it = bounded_.find(id);
  return it == bounded_.end() ? nullptr : &it->second;
}

Status BoundedAxes::refuse(const Node& node, const std::string& why) const {
  return input_error("{}", why).with_prefix(graph_.describe(node));
}

Result<bool> BoundedAxes::take(Node& node) {
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

Result<bool> BoundedAxes::take_shape(Node& node) {
  const std::string op = node.op->full_name();
  if (std::ranges::none_of(node.inputs, [&](ValueId id) { return shapes_.has(id); })) return false;
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
Status BoundedAxes::made_of_shape(const Node& node) {
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
                        (*one(i))[0] == (i == 0 ? 0 : 1);
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

void BoundedAxes::watch(const Node& node) {
  static const std::set<std::string> kElements = {"Reshape",  "Flatten",   "Squeeze", "Unsqueeze",
                                                  "Identity", "Transpose", "Slice",   "Gather"};
  shapes_.watch(node);
  if (!kElements.contains(node.op->full_name())) return;
  const auto it = within_.find(node.inputs[0]);
  if (it != within_.end()) within_[node.outputs[0]] = it->second;
}

const BoundedAxes::Bounded* BoundedAxes::indexed_within(const Node& node) const {
  const std::string op = node.op->full_name();
  if (op != "Gather" && op != "ScatterElements" && op != "ScatterND") return nullptr;
  const Bounded* data = bounded(node.inputs[0]);
  const auto index = within_.find(node.inputs[1]);
  if (data == nullptr || index == within_.end() || !(index->second == data->count)) return nullptr;
  if (op != "Gather" && bounded(node.inputs[2]) != nullptr) return nullptr;
  const Shape& indices = graph_.value(node.inputs[1]).desc.shape;
  if (op == "ScatterND") {
    return data->axis == 0 && indices[indices.rank() - 1] == 1 ? data : nullptr;
  }
  const auto axis =
      normalize_axis(node.attributes.i("axis", 0), graph_.value(node.inputs[0]).desc.shape.rank());
  return axis.ok() && *axis == data->axis ? data : nullptr;
}

Status BoundedAxes::check_outputs() const {
  for (ValueId id : graph_.outputs) {
    const Bounded* found = bounded(id);
    if (found == nullptr) continue;
    return input_error("{}: the size of axis {} of output '{}' depends on the data", graph_.file,
                       found->axis, graph_.value(id).name);
  }
  return {};
}

Status BoundedAxes::keep(const Node& node) {
  OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph_, node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != 0) graph_.value(node.outputs[i]).desc = descs[i];
  }
  if (node.op->shape_only) return fold(graph_, node);
  graph_.nodes.push_back(node);
  return {};
}

Status BoundedAxes::keep_bounded(const Node& node, int axis, Count count) {
  OFSDP_RETURN_IF_ERROR(keep(node));
  for (ValueId id : node.outputs) {
    if (id != 0) bounded_[id] = {axis, count};
  }
  return {};
}

ValueId BoundedAxes::ints(const std::string& name, const std::vector<int64_t>& values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  return editor_.add_constant(name, make_constant<int64_t>(DType::kInt64, shape, values));
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
    if (beside(graph_, node, i, found->axis)) continue;
    return refuse(node, format_text("combines '{}' with an axis whose size only the run knows",
                                    graph_.value(node.inputs[i]).name));
  }
  for (ValueId id : node.outputs) {
    if (id != 0) bounded_[id] = *found;
  }
  return {};
}

}  // namespace ofsdp::importer
