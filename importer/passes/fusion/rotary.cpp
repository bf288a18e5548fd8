// RotaryEmbedding from the pieces, x with four axes [b, h, s, d] or [b, s, h, d]:
//
//   x * cos + Concat(-x[d/2:], x[:d/2]) * sin             halves by Slice or Split; cos and sin:
//                                                         width d, two equal halves
//   Concat(a cos - b sin, b cos + a sin)                  a, b the halves of x; table width d/2
//   Concat(rotated x[:r], x[r:])                          rotary_embedding_dim = r (GPT-NeoX, Phi)
//
// Tables that are equal for all samples become rows [s, d/2] of com.microsoft's operator, read from
// offset 0; others become [b, s, d/2] of ai.onnx's. They may be constant or computed, but must not
// depend on trained parameters: the operator gives them no gradient.
#include <algorithm>
#include <array>

#include "importer/file/onnx_file.h"
#include "importer/passes/fusion/fusion.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kOffset = "com.microsoft.RotaryEmbedding";
constexpr const char* kTables = "RotaryEmbedding";

int64_t width(const Rewriter& r, ValueId id) {
  const Shape& shape = r.shape(id);
  return shape.rank() == 0 ? 0 : shape[shape.rank() - 1];
}

bool is_last(const Rewriter& r, ValueId id, int64_t axis) {
  return axis == -1 || axis == r.shape(id).rank() - 1;
}

// Elements begin .. end along the last axis of `of`; 0: no match.
struct Part {
  ValueId of = 0;
  int64_t begin = 0, end = 0;
};

// Returns a known integer tensor's only element.
std::optional<int64_t> one_int(const Rewriter& r, const Node& node, size_t i) {
  if (i >= node.inputs.size() || node.inputs[i] == 0) return std::nullopt;
  const auto number = r.scalar(node.inputs[i]);
  return number ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
}

Part slice_part(const Rewriter& r, const Node& slice) {
  const auto start = one_int(r, slice, 1), axis = one_int(r, slice, 3);
  const bool whole_steps = slice.inputs.size() < 5 || one_int(r, slice, 4) == 1;
  if (!start || !axis || !whole_steps || !is_last(r, slice.inputs[0], *axis)) return {};
  const int64_t begin = *start < 0 ? *start + width(r, slice.inputs[0]) : *start;
  return {slice.inputs[0], begin, begin + width(r, slice.outputs[0])};
}

Part split_part(const Rewriter& r, const Node& split, ValueId id) {
  if (!is_last(r, split.inputs[0], split.attributes.i("axis", 0))) return {};
  int64_t begin = 0;
  for (ValueId piece : split.outputs) {
    if (piece == id) return {split.inputs[0], begin, begin + width(r, id)};
    if (piece == 0) return {};
    begin += width(r, piece);
  }
  return {};
}

Part part(const Rewriter& r, ValueId id) {
  const Node* node = r.maker(id);
  if (node == nullptr) return {};
  if (node->op->full_name() == "Slice") return slice_part(r, *node);
  return node->op->full_name() == "Split" ? split_part(r, *node, id) : Part{};
}

// Returns the value with the halves `low` and `high`, or 0.
ValueId whole(const Rewriter& r, ValueId low, ValueId high) {
  const Part a = part(r, low), b = part(r, high);
  const bool fits = a.of != 0 && a.of == b.of && a.begin == 0 && a.end == b.begin &&
                    a.end * 2 == b.end && b.end == width(r, a.of);
  return fits ? a.of : 0;
}

// Returns the Concat that makes `id` from two values along the last axis, or null.
const Node* pair(const Rewriter& r, ValueId id) {
  const Node* concat = r.made_by(id, "Concat");
  if (concat == nullptr || concat->inputs.size() != 2) return nullptr;
  return is_last(r, id, concat->attributes.i("axis", 0)) ? concat : nullptr;
}

// Returns x in Concat(-x[d/2:], x[:d/2]), or 0.
ValueId turned(const Rewriter& r, ValueId id) {
  const Node* concat = pair(r, id);
  const Node* neg = concat == nullptr ? nullptr : r.made_by(concat->inputs[0], "Neg");
  return neg == nullptr ? 0 : whole(r, concat->inputs[1], neg->inputs[0]);
}

bool constant_halves_equal(const Constant& c, int64_t row) {
  const std::vector<double> v = to_doubles(c.desc, c.bytes.data());
  for (size_t i = 0, d = static_cast<size_t>(row); i < v.size(); i += d) {
    const auto begin = v.begin() + static_cast<std::ptrdiff_t>(i);
    const auto half = static_cast<std::ptrdiff_t>(d / 2);
    if (!std::equal(begin, begin + half, begin + half)) return false;
  }
  return true;
}

// Returns whether the last axis has two equal halves: known values, or a Concat(f, f).
bool halves_equal(const Rewriter& r, ValueId id) {
  const int64_t d = width(r, id);
  if (d == 0 || d % 2 != 0) return false;
  constexpr std::array<const char*, 7> kThrough = {"Cos",     "Sin",    "Cast",   "Unsqueeze",
                                                   "Reshape", "Expand", "Squeeze"};
  while (width(r, id) == d) {
    const Value& value = r.graph().value(id);
    if (value.kind == ValueKind::kConstant) return constant_halves_equal(*value.constant, d);
    const Node* node = r.maker(id);
    if (node == nullptr) return false;
    if (const Node* concat = pair(r, id)) return concat->inputs[0] == concat->inputs[1];
    const bool scaled = node->op->full_name() == "Mul";
    const size_t side = !scaled || r.scalar(node->inputs[1]) ? 0 : 1;
    if (scaled && !r.scalar(node->inputs[1 - side])) return false;
    if (!scaled && std::ranges::find(kThrough, node->op->full_name()) == kThrough.end()) {
      return false;
    }
    id = node->inputs[side];
  }
  return false;
}

// Returns the first d/2 elements in each table row, in the shape `axes`; made once for all readers.
ValueId half_table(Rewriter& r, ValueId table, int64_t half, const std::vector<int64_t>& axes) {
  ValueId& made = r.remembered(format_text("rotary {} {}", table, joined(axes, " ")));
  if (made != 0) return made;
  ValueId low = table;
  if (width(r, table) != half) {
    const std::vector<ValueId> cut{table, r.ints({0}), r.ints({half}), r.ints({-1})};
    low = r.emit("Slice", r.graph().value(table).name + ".half", cut);
  }
  // References from `remembered` stay valid while values are added.
  return made = r.emit("Reshape", r.graph().value(table).name + ".rows", {low, r.ints(axes)});
}

// The tables' place among x's axes, aligned right.
struct Place {
  bool fits = false;
  bool steps_first = false;  // x is [b, s, h, d]
  bool per_sample = false;
};

Place place(const Rewriter& r, ValueId x, ValueId table) {
  const Shape &s = r.shape(x), &t = r.shape(table);
  if (s.rank() != 4 || t.rank() > 4 || t.rank() < 2 || s.numel() == 0) return {};
  auto axis = [&](int i) { return i < 4 - t.rank() ? 1 : t[i - 4 + t.rank()]; };
  if (axis(0) != 1 && axis(0) != s[0]) return {};
  const bool per_sample = axis(0) != 1;
  if (axis(1) == 1 && axis(2) == s[2]) return {true, false, per_sample};
  return {axis(2) == 1 && axis(1) == s[1], true, per_sample};
}

bool rotate(Rewriter& r, const Node& node, ValueId x, ValueId cos, ValueId sin) {
  const Place at = place(r, x, cos);
  const bool same = r.shape(cos) == r.shape(sin) && !r.trained(cos) && !r.trained(sin);
  if (!at.fits || !same || r.desc(x).dtype != DType::kFloat32) return false;
  const Shape s = r.shape(x);
  const int64_t steps = s[at.steps_first ? 1 : 2], heads = s[at.steps_first ? 2 : 1];
  const int64_t half = s[3] / 2;
  std::vector<int64_t> axes{steps, half};
  if (at.per_sample) axes.insert(axes.begin(), s[0]);
  const ValueId c = half_table(r, cos, half, axes), n = half_table(r, sin, half, axes);
  auto inputs = [&](ValueId from) {
    return at.per_sample ? std::vector{from, c, n} : std::vector{from, r.ints({0}), c, n};
  };
  const char* op = at.per_sample ? kTables : kOffset;
  if (!at.steps_first) return r.replace(node, op, inputs(x));
  const ValueId rows =
      r.emit("Reshape", node.name + ".heads_joined", {x, r.ints({s[0], steps, heads * s[3]})});
  const ValueId made = r.emit(op, node.name + ".rotated", inputs(rows), {{"num_heads", heads}});
  return r.replace(node, "Reshape", {made, r.ints(s.axes())});
}

struct Product {
  ValueId a = 0, b = 0;
};

// Returns the factors if a product has no other readers.
Product product(const Rewriter& r, ValueId id) {
  const Node* mul = r.read_once(id) ? r.made_by(id, "Mul") : nullptr;
  return mul == nullptr ? Product{} : Product{mul->inputs[0], mul->inputs[1]};
}

bool fuse_sum(Rewriter& r, const Node& add) {
  for (const auto& [straight, crossed] : Rewriter::both_orders(add)) {
    const Product p = product(r, crossed);
    for (const auto& [rotated, sin] : {std::pair{p.a, p.b}, std::pair{p.b, p.a}}) {
      const ValueId x = rotated == 0 ? 0 : turned(r, rotated);
      const Product q = x == 0 ? Product{} : product(r, straight);
      if (q.a == 0 || (q.a != x && q.b != x)) continue;
      const ValueId cos = q.a == x ? q.b : q.a;
      if (width(r, cos) != width(r, x) || !halves_equal(r, cos) || !halves_equal(r, sin)) continue;
      if (rotate(r, add, x, cos, sin)) return true;
    }
  }
  return false;
}

// Matches cos and sin in a cos - b sin = first, b cos + a sin = second.
bool fuse_halves(Rewriter& r, const Node& concat) {
  const Node* sub = r.made_by(concat.inputs[0], "Sub");
  const Node* add = r.made_by(concat.inputs[1], "Add");
  if (sub == nullptr || add == nullptr) return false;
  const Product ac = product(r, sub->inputs[0]), bs = product(r, sub->inputs[1]);
  Product bc = product(r, add->inputs[0]), as = product(r, add->inputs[1]);
  auto other = [](const Product& p, ValueId known) {
    return p.a == known ? p.b : (p.b == known ? p.a : 0);
  };
  for (const auto& [a, cos] : {std::pair{ac.a, ac.b}, std::pair{ac.b, ac.a}}) {
    for (const auto& [b, sin] : {std::pair{bs.a, bs.b}, std::pair{bs.b, bs.a}}) {
      if (a == 0 || b == 0) continue;
      if (other(bc, b) != cos) std::swap(bc, as);
      if (other(bc, b) != cos || other(as, a) != sin) continue;
      const ValueId x = whole(r, a, b);
      if (x != 0 && width(r, cos) == width(r, a) && rotate(r, concat, x, cos, sin)) return true;
    }
  }
  return false;
}

bool fuse_partial(Rewriter& r, const Node& concat) {
  for (const char* op : {kOffset, kTables}) {
    const Node* inner = r.made_by(concat.inputs[0], op);
    if (inner == nullptr || !r.read_once(inner->outputs[0])) continue;
    const Part first = part(r, inner->inputs[0]), rest = part(r, concat.inputs[1]);
    const bool fits = first.of != 0 && first.of == rest.of && first.begin == 0 &&
                      first.end == rest.begin && rest.end == width(r, first.of);
    if (!fits || r.shape(first.of).rank() != 4) continue;
    std::vector<ValueId> inputs = inner->inputs;
    inputs[0] = first.of;
    return r.replace(concat, op, inputs, {{"rotary_embedding_dim", first.end}});
  }
  return false;
}

}  // namespace

bool fuse_rotary(Rewriter& r, const Node& node) {
  if (r.graph().registry->find(kMicrosoft, "RotaryEmbedding") == nullptr) return false;
  if (node.op->full_name() == "Add") return fuse_sum(r, node);
  if (node.op->full_name() != "Concat" || node.inputs.size() != 2) return false;
  if (!is_last(r, node.outputs[0], node.attributes.i("axis", 0))) return false;
  return fuse_halves(r, node) || fuse_partial(r, node);
}

}  // namespace ofsdp::importer
