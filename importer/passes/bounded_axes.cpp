#include <algorithm>
#include <optional>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/specialize.h"
#include "kernels/base/budgets.h"

namespace ofsdp::importer {
namespace {

// Rules that map an input's bounded axis (specialize.h) to an output axis, for operators that work
// slice by slice along it, so padding only meets padding. nullopt: not slice by slice, or unknown.

struct CarriedAxis {
  int axis = 0;
  int64_t times = 1;  // output slices per input slice: factor * times / over
  int64_t over = 1;

  bool operator==(const CarriedAxis&) const = default;
};

using Found = std::optional<CarriedAxis>;

struct Case {
  const Node& node;
  size_t input;
  int axis;
  const Shape& x;  // that input's shape
  const Shape& y;  // output 0's shape

  int attribute(const char* name, int64_t otherwise, int rank) const {
    const int64_t axis = node.attributes.i(name, otherwise);
    return static_cast<int>(axis < 0 ? axis + rank : axis);
  }
};

bool elementwise(const Node& node) {
  return node.op->layout == LayoutRule::kElementwise || node.op->full_name() == "Where" ||
         node.op->full_name() == "Clip";
}

Found aligned(const Case& c) { return CarriedAxis{c.y.rank() - c.x.rank() + c.axis}; }
Found here(const Case& c) { return CarriedAxis{c.axis}; }

Found transpose(const Case& c) {
  std::vector<int64_t> perm = c.node.attributes.ints("perm");
  if (perm.empty()) return CarriedAxis{c.x.rank() - 1 - c.axis};
  return CarriedAxis{static_cast<int>(std::ranges::find(perm, c.axis) - perm.begin())};
}

// Maps to the axis that begins at the same offset; it may merge following axes or lose inner ones.
Found reshape(const Case& c) {
  const int64_t before = c.x.numel(0, c.axis);
  const int64_t n = c.x[c.axis];
  for (int j = 0; j < c.y.rank() && n > 0; ++j) {
    if (c.y.numel(0, j) != before) continue;
    if (c.y[j] == n) return CarriedAxis{j};
    for (int end = c.axis + 1; end <= c.x.rank() && c.y[j] > n; ++end) {
      const int64_t inner = c.x.numel(c.axis + 1, end);
      if (c.y[j] == n * inner) return CarriedAxis{j, inner};
    }
    for (int end = j + 1; end <= c.y.rank() && c.y[j] > 1; ++end) {
      if (c.y.numel(j, end) == n) return CarriedAxis{j, 1, n / c.y[j]};
    }
  }
  return std::nullopt;
}

// The operator works along one axis and carries any other.
Found unless_axis(const Case& c, int64_t otherwise) {
  if (c.attribute("axis", otherwise, c.x.rank()) == c.axis) return std::nullopt;
  return here(c);
}

// Axes from `axis` on form one row.
Found before_axis(const Case& c) {
  if (c.input != 0 || c.axis >= c.attribute("axis", -1, c.x.rank())) return std::nullopt;
  return here(c);
}

Found gather(const Case& c, const Graph& graph) {
  const Shape& data = graph.value(c.node.inputs[0]).desc.shape;
  const int along = c.attribute("axis", 0, data.rank());
  if (c.input == 1) return CarriedAxis{along + c.axis};
  if (c.axis == along) return std::nullopt;
  return CarriedAxis{c.axis < along ? c.axis : c.axis + c.y.rank() - c.x.rank()};
}

Found gather_nd(const Case& c) {
  if (c.input != 1 || c.axis == c.x.rank() - 1) return std::nullopt;
  return here(c);
}

Found matmul(const Case& c) {
  const int contracted = c.input == 0 ? c.x.rank() - 1 : std::max(c.x.rank() - 2, 0);
  if (c.axis == contracted || c.x.rank() < 2) return std::nullopt;
  return aligned(c);
}

Found gemm(const Case& c) {
  if (c.input != 0 || c.axis != 0 || c.node.attributes.i("transA", 0) != 0) return std::nullopt;
  return here(c);
}

// Reduces other axes; without keepdims, later axes move up.
Found reduce(const Case& c, const Graph& graph) {
  std::vector<int64_t> axes;
  if (c.node.op->full_name().starts_with("Arg")) {
    axes = {c.node.attributes.i("axis", 0)};
  } else if (c.node.inputs.size() > 1 && c.node.inputs[1] != 0) {
    axes = *int_values(*graph.value(c.node.inputs[1]).constant);  // infer has read them
  }
  int moved = 0;
  for (int64_t& axis : axes) {
    if (axis < 0) axis += c.x.rank();
    if (axis == c.axis) return std::nullopt;
    if (axis < c.axis) ++moved;
  }
  if (axes.empty()) return std::nullopt;
  return CarriedAxis{c.axis - (c.node.attributes.i("keepdims", 1) != 0 ? 0 : moved)};
}

Found one_hot(const Case& c) {
  if (c.input != 0) return std::nullopt;
  return CarriedAxis{c.axis + (c.axis >= c.attribute("axis", -1, c.y.rank()) ? 1 : 0)};
}

// REQUIRES: the node's outputs have descs.
Found carried_axis(const Graph& graph, const Node& node, size_t input, int axis) {
  static const std::set<std::string> kReshapes = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"};
  static const std::set<std::string> kNorms = {"LayerNormalization", "RMSNormalization",
                                               "SimplifiedLayerNormalization"};
  const Case c{node, input, axis, graph.value(node.inputs[input]).desc.shape,
               graph.value(node.outputs[0]).desc.shape};
  const std::string op = node.op->full_name();
  if (kReshapes.contains(op)) return reshape(c);
  if (elementwise(node)) return aligned(c);
  if (op == "Transpose") return transpose(c);
  if (op == "Concat" || op == "Split" || op == "CumSum") return unless_axis(c, 0);
  if (op == "Softmax" || op == "LogSoftmax" || op == "TopK") return unless_axis(c, -1);
  if (kNorms.contains(op)) return before_axis(c);
  if (op == "Gather") return gather(c, graph);
  if (op == "GatherND") return gather_nd(c);
  if (op == "MatMul") return matmul(c);
  if (op == "Gemm") return gemm(c);
  if (op == "OneHot") return one_hot(c);
  if (op.starts_with("Reduce") || op.starts_with("Arg")) return reduce(c, graph);
  return std::nullopt;
}

// Returns whether another input, without a bounded axis, fits that output axis because it is the
// same for all slices.
bool fits_axis(const Graph& graph, const Node& node, size_t input, int output_axis) {
  const std::string op = node.op->full_name();
  if (op == "Concat") return false;
  if (!elementwise(node) && op != "MatMul" && op != "Gemm") return true;
  const Shape& x = graph.value(node.inputs[input]).desc.shape;
  const Shape& y = graph.value(node.outputs[0]).desc.shape;
  const int axis = output_axis - (y.rank() - x.rank());
  if (axis < 0) return true;
  // A product matches its batch axes like an elementwise operator, its matrices by their own axes.
  if (op == "Gemm") return input == 1 || x[axis] == 1;
  if (op == "MatMul" && output_axis >= y.rank() - 2) return true;
  return x[axis] == 1;
}

}  // namespace

// Operators that cut, spread, sum over or scatter along an input's bounded axis, and operators that
// pass it on.

namespace {

// Inputs after the first select elements in the first, or count them.
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

// Cuts other axes as usual. It may cut the bounded axis only from the front, to another count.
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

// The file fixes a size along the bounded axis; the run checks it.
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

// Scatters into data with one more slice, which receives the padding and is cut off.
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
  if (zeros.desc.numel() > kMaxFolded) {
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

// Handles ConstantOfShape, Range, and Expand if the value has no bounded axis.
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

// Gathers the slices that the condition finds.
Status BoundedAxes::compress(const Node& node) {
  const ValueId found = editor_.add_value({node.name + ".found", ValueKind::kActivation, {}});
  OFSDP_RETURN_IF_ERROR(find_indices(node, node.inputs[1], found));
  OFSDP_ASSIGN_OR_RETURN(const ValueId indices,
                         editor_.add1("Squeeze", node.name + ".indices",
                                      {found, add_ints(graph_, node.name + ".axis", {0})}));
  return gather_found(node, indices, bounded_.at(found).count);
}

// The gradient goes to each slice's first occurrence.
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

// Replaces `node` by a Gather for the slices in `indices` along the axis. Without the attribute,
// flattens the data first.
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
