#include "importer/passes/bounded_axes.h"

#include <algorithm>
#include <set>

#include "importer/graph/fold.h"
#include "importer/graph/graph_uses.h"

namespace ofsdp::importer {

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
  OFSDP_RETURN_IF_ERROR(take_bounded(node, *known));
  return true;
}

void BoundedAxes::watch(const Node& node) {
  static const std::set<std::string> kElements = {"Reshape",  "Flatten",   "Squeeze", "Unsqueeze",
                                                  "Identity", "Transpose", "Slice",   "Gather"};
  shapes_.watch(node);
  if (!kElements.contains(node.op->full_name())) return;
  const auto it = within_.find(node.inputs[0]);
  if (it != within_.end()) within_[node.outputs[0]] = it->second;
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

const BoundedAxes::Bounded* BoundedAxes::bounded(ValueId id) const {
  const auto it = bounded_.find(id);
  return it == bounded_.end() ? nullptr : &it->second;
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

// Replaces counts in shape inputs by their bounds. Returns whether the node is finished.
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
  OFSDP_ASSIGN_OR_RETURN(const ValueId indices,
                         editor_.add1("Squeeze", node.name + ".indices",
                                      {found, add_ints(graph_, node.name + ".axis", {0})}));
  return gather_found(node, indices, bounded_.at(found).count);
}

// The gradient goes to the slices that appear first.
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

// `node` becomes a Gather along its axis of the slices that `indices` name. Without the attribute
// its data are laid flat.
Status BoundedAxes::gather_found(const Node& node, ValueId indices, Count count) {
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

Status BoundedAxes::keep(const Node& node) {
  if (!node.op->shape_only) return editor_.place_inferred(node);
  OFSDP_RETURN_IF_ERROR(infer_descs(graph_, node).status());
  return fold(graph_, node);
}

Status BoundedAxes::keep_bounded(const Node& node, int axis, Count count) {
  OFSDP_RETURN_IF_ERROR(keep(node));
  for (ValueId id : node.outputs) {
    if (id != 0) bounded_[id] = {axis, count};
  }
  return {};
}

Status BoundedAxes::refuse(const Node& node, const std::string& why) const {
  return input_error("{}", why).with_prefix(graph_.describe(node));
}

}  // namespace ofsdp::importer
