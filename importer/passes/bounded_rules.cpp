#include "importer/passes/bounded_rules.h"

#include <algorithm>
#include <set>

namespace ofsdp::importer {
namespace {

using Found = std::optional<CarriedAxis>;

struct Case {
  const Node& node;
  size_t input;
  int axis;
  const Shape& x;  // of that input
  const Shape& y;  // of output 0

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

// The axis that begins at the same place; it may also hold axes that follow, or lose inner ones.
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

// One axis is worked along: any other is carried.
Found unless_axis(const Case& c, int64_t otherwise) {
  if (c.attribute("axis", otherwise, c.x.rank()) == c.axis) return std::nullopt;
  return here(c);
}

// Axes from `axis` on are one row.
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

// Over other axes; without keepdims the axes after them move up.
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

}  // namespace

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

bool fits_axis(const Graph& graph, const Node& node, size_t input, int output_axis) {
  const std::string op = node.op->full_name();
  if (op == "Concat") return false;
  if (!elementwise(node) && op != "MatMul" && op != "Gemm") return true;
  const Shape& x = graph.value(node.inputs[input]).desc.shape;
  const Shape& y = graph.value(node.outputs[0]).desc.shape;
  const int axis = output_axis - (y.rank() - x.rank());
  if (axis < 0) return true;
  // The matrices of a product meet in their own axes, their batch axes as elements do.
  if (op == "Gemm") return input == 1 || x[axis] == 1;
  if (op == "MatMul" && output_axis >= y.rank() - 2) return true;
  return x[axis] == 1;
}

}  // namespace ofsdp::importer
