#include <algorithm>

#include "importer/passes/fusion/fusion.h"
#include "kernels/core/planned_operands.h"

namespace ofsdp::importer {

// Attention that reads q, k and v where products left them, and writes y where the next product
// reads it, instead of copies around it:
//
//   Attention(..., Transpose(x), ...)              -> x itself, with the heads' layout
//   Attention over three parts, a Split of x   -> Attention(x, -, -), with three layouts
//   Transpose(Attention(...)), columns last        -> Attention with ofsdp_result_perm
//
// Nodes between them may rename elements (Reshape, Squeeze, ...), and Transposes may precede a
// Split. kernels/core/planned_operands.h has the attributes. The gradient follows from them: dq, dk
// and dv lie as q, k and v, so gradients need no copy either, and all three fill one tensor, the
// gradient of x.
//
// A value with another reader stays, and so does the result from a rotary embedding or another
// operator on heads, which needs the copy before it anyway. A trained mask keeps a Split apart.

namespace {

constexpr const char* kLayouts[] = {kQueryLayout, kKeyLayout, kValueLayout};

// A node that makes `made` by moving or renaming the first input's elements.
struct Move {
  const Node* node = nullptr;
  ValueId made = 0;

  bool copies() const { return !node->op->view; }
  bool splits() const { return node->op->full_name() == "Split"; }
};

// The moves before an attention operand, the nearest first.
using Moves = std::vector<Move>;

// Returns whether the node is ONNX's Attention without a past and without outputs besides y.
bool is_plain_attention(const Node& node) {
  const auto none = [](const std::vector<ValueId>& ids, size_t from, size_t to) {
    for (size_t i = from; i < std::min(to, ids.size()); ++i) {
      if (ids[i] != 0) return false;
    }
    return true;
  };
  return is_operator(node, "Attention") && none(node.inputs, 4, 6) && none(node.outputs, 1, 4);
}

bool only_moves(const Rewriter& r, const Node& node) {
  const bool moves = node.op->view || is_operator(node, "Transpose") || is_operator(node, "Split");
  return moves && r.desc(node.inputs[0]).layout == Layout::kPlain;
}

size_t place_of_split(const Moves& moves) {
  return static_cast<size_t>(std::ranges::find_if(moves, &Move::splits) - moves.begin());
}

// Returns the moves up to a second Split; its other parts are no operands. REQUIRES: no node is
// emitted while they are in use.
Moves moves_to(const Rewriter& r, ValueId operand) {
  Moves found;
  for (ValueId id = operand;;) {
    const Move move{r.maker(id), id};
    if (move.node == nullptr || !r.read_once(id) || !only_moves(r, *move.node)) return found;
    if (move.splits() && place_of_split(found) < found.size()) return found;
    found.push_back(move);
    id = move.node->inputs[0];
  }
}

std::optional<StridedView> part_of(const Rewriter& r, const StridedView& view, const Move& split) {
  const auto rank = static_cast<int64_t>(view.sizes.size());
  const int64_t axis = split.node->attributes.i("axis", 0);
  const int along = static_cast<int>(axis < 0 ? axis + rank : axis);
  int64_t begin = 0;
  for (const ValueId id : split.node->outputs) {
    if (id == 0) return std::nullopt;
    const int64_t size = r.shape(id)[along];
    if (id == split.made) return view.part(static_cast<size_t>(along), begin, size);
    begin += size;
  }
  return std::nullopt;
}

std::optional<StridedView> moved(const Rewriter& r, const StridedView& view, const Move& move) {
  if (move.splits()) return part_of(r, view, move);
  if (!move.copies()) return view.reshaped(r.shape(move.made));
  const std::vector<int64_t> perm = move.node->attributes.ints("perm");
  return perm.size() == view.sizes.size() ? std::optional(view.permuted(perm)) : std::nullopt;
}

// Returns an operand's layout in the first input of moves[last]. REQUIRES: `moves` lead to it.
std::optional<HeadLayout> layout_in(const Rewriter& r, const Moves& moves, size_t last) {
  std::optional<StridedView> view = StridedView::of(r.shape(moves[last].node->inputs[0]));
  for (size_t i = last + 1; view && i-- > 0;) view = moved(r, *view, moves[i]);
  if (!view || view->sizes.size() != 4) return std::nullopt;
  if (view->sizes[3] != 1 && view->steps[3] != 1) return std::nullopt;
  return HeadLayout{view->sizes[0],
                    view->sizes[1],
                    view->sizes[2],
                    view->sizes[3],
                    {view->steps[0], view->steps[1], view->steps[2], view->first}};
}

// An Attention in change: the operands, and the moves before each.
struct AttentionHeads {
  AttentionHeads(const Rewriter& rewriter, const Node& node)
      : r(rewriter), inputs(node.inputs), attributes(node.attributes) {
    for (size_t i = 0; i < 3; ++i) moves[i] = moves_to(r, inputs[i]);
  }

  // Lets all three operands read one Split's input. Returns whether they do.
  bool take_split() {
    const Node* split = common_split();
    if (split == nullptr) return false;
    for (size_t above = moves[0].size() - place_of_split(moves[0]); above-- > 0;) {
      std::optional<HeadLayout> layouts[3];
      for (size_t i = 0; i < 3; ++i) {
        layouts[i] = layout_in(r, moves[i], place_of_split(moves[i]) + above);
      }
      if (!moves[0][place_of_split(moves[0]) + above].copies()) continue;
      if (!std::ranges::all_of(layouts, [](const auto& l) { return l.has_value(); })) continue;
      for (size_t i = 0; i < 3; ++i) attributes.set(kLayouts[i], to_attribute(*layouts[i]));
      inputs[0] = moves[0][place_of_split(moves[0]) + above].node->inputs[0];
      inputs[1] = inputs[2] = 0;
      return true;
    }
    return false;
  }

  // Lets an operand read the highest Transpose's input that a layout can describe, below any Split.
  bool take_transposes(size_t i) {
    for (size_t last = place_of_split(moves[i]); last-- > 0;) {
      const auto layout = moves[i][last].copies() ? layout_in(r, moves[i], last) : std::nullopt;
      if (!layout) continue;
      attributes.set(kLayouts[i], to_attribute(*layout));
      inputs[i] = moves[i][last].node->inputs[0];
      return true;
    }
    return false;
  }

  // Returns the Split with the three operands as the three parts, or null.
  const Node* common_split() const {
    const Node* split = nullptr;
    for (const Moves& to : moves) {
      const size_t at = place_of_split(to);
      if (at == to.size() || (split != nullptr && to[at].node != split)) return nullptr;
      split = to[at].node;
    }
    return split->outputs.size() == 3 ? split : nullptr;
  }

  const Rewriter& r;
  std::vector<ValueId> inputs;
  Attributes attributes;
  Moves moves[3];
};

// Looks through nodes that change nothing and have no other reader.
ValueId behind_views(const Rewriter& r, ValueId id) {
  for (;;) {
    const Node* view = r.read_once(id) ? r.maker(id) : nullptr;
    if (view == nullptr || !view->op->view || r.desc(view->inputs[0]) != r.desc(id)) return id;
    id = view->inputs[0];
  }
}

}  // namespace

bool fuse_attention_operands(Rewriter& r, const Node& node) {
  if (!is_plain_attention(node)) return false;
  for (size_t i = 0; i < 3; ++i) {
    if (node.inputs[i] == 0 || r.shape(node.inputs[i]).rank() != 4) return false;
  }
  AttentionHeads heads(r, node);
  const bool mask_learns = node.inputs.size() > 3 && r.trained(node.inputs[3]);
  bool any = !mask_learns && heads.take_split();
  for (size_t i = 0; i < 3 && heads.inputs[1] != 0; ++i) any |= heads.take_transposes(i);
  return any && r.replace(node, "Attention", heads.inputs, heads.attributes);
}

bool fuse_attention_result(Rewriter& r, const Node& node) {
  const ValueId y = behind_views(r, node.inputs[0]);
  const Node* attention = r.made_by(y, "Attention");
  if (attention == nullptr || !r.read_once(y) || !is_plain_attention(*attention)) return false;
  const std::vector<int64_t> perm = node.attributes.ints("perm");
  if (r.shape(y).rank() != 4 || perm.size() != 4 || perm[3] != 3) return false;
  if (!is_operator(node, "Transpose") || attention->attributes.has(kResultPerm)) return false;
  Attributes attributes = attention->attributes;
  attributes.set(kResultPerm, perm);
  return r.replace(node, "Attention", attention->inputs, attributes, attention->name);
}

// Attention from MatMul, scale, mask, Softmax, MatMul, as exporters spell it:
//
//   scores = MatMul(q, k^T) [* c or / c]       k^T: a Transpose over the last two axes, or over
//   scores = scores [+ mask]                   [b, s, h, d] directly to [b, h, d, s]
//   MatMul(Softmax(scores, -1), v)             q and k^T may be scaled, too
//     -> Attention(q, k, v, mask, scale)
//
// The first product may be com.microsoft.FusedMatMul, with alpha as a factor and, with transB,
// plain keys.
//
// A Cast to the same type, as the older exporter writes around Softmax, is looked through: the
// operator computes the Softmax in float32 anyway.
//
// If a row's mask is -infinity everywhere, Attention returns zeros, but a bare Softmax NaN.
//
// The causal mask: Attention(q, k, v, mask) -> Attention(q, k, v) with is_causal, if the mask says
// nothing else. Such a mask is a constant [..., queries, keys] that adds 0 (or is true) up to the
// diagonal. After the diagonal it is false, -infinity or so low (-1e9 or less) that no score brings
// the key back. Kernels skip keys that causality hides, but they must read a mask.

namespace {

// Looks through Casts that change nothing and have no other reader.
ValueId uncast(const Rewriter& r, ValueId id) {
  for (;;) {
    const Node* cast = r.read_once(id) ? r.made_by(id, "Cast") : nullptr;
    if (cast == nullptr || r.desc(cast->inputs[0]).dtype != r.desc(id).dtype) return id;
    id = cast->inputs[0];
  }
}

// Removes constant factors from a value and multiplies them into `scale`.
ValueId unscaled(const Rewriter& r, ValueId id, double& scale) {
  for (;;) {
    ValueId inner = 0;
    if (const Node* mul = r.made_by(id, "Mul")) {
      for (const auto& [value, other] : Rewriter::both_orders(*mul)) {
        const auto factor = r.scalar(other);
        if (!factor || inner != 0) continue;
        scale *= *factor;
        inner = value;
      }
    }
    if (const Node* div = inner == 0 ? r.made_by(id, "Div") : nullptr;
        div != nullptr && r.scalar(div->inputs[1])) {
      scale /= *r.scalar(div->inputs[1]);
      inner = div->inputs[0];
    }
    if (inner == 0) return id;
    id = inner;
  }
}

struct Scores {
  ValueId q = 0, k_transposed = 0, mask = 0;
  bool plain_keys = false;  // k_transposed holds k itself
  double scale = 1;
};

// Matches q k^T with the factors; q is 0 without a match.
Scores scores_product(const Rewriter& r, ValueId id) {
  Scores s;
  const ValueId product = unscaled(r, id, s.scale);
  const Node* matmul = r.made_by(product, "MatMul");
  if (matmul == nullptr) matmul = r.made_by(product, "com.microsoft.FusedMatMul");
  if (matmul == nullptr || !r.read_once(product)) return {};
  if (matmul->attributes.i("transA", 0) != 0) return {};
  s.scale *= static_cast<double>(matmul->attributes.f("alpha", 1));
  s.plain_keys = matmul->attributes.i("transB", 0) != 0;
  const ValueId q = matmul->inputs[0], k = matmul->inputs[1];
  s.q = unscaled(r, q, s.scale);
  s.k_transposed = unscaled(r, k, s.scale);
  return s;
}

Scores scores(const Rewriter& r, ValueId id) {
  const Node* add = r.made_by(id, "Add");
  if (add == nullptr) return scores_product(r, id);
  for (const auto& [sum, mask] : Rewriter::both_orders(*add)) {
    Scores s = scores_product(r, sum);
    s.mask = mask;
    if (s.q != 0) return s;
  }
  return scores_product(r, id);
}

// The same with three axes in between: [b, h, s, d] -> [b h, s, d] -> [b h, d, s] -> [b, h, d, s].
ValueId keys_of_three_axes(const Rewriter& r, ValueId k_transposed) {
  const Node* outer = r.made_by(k_transposed, "Reshape");
  const Node* transpose = outer == nullptr ? nullptr : r.made_by(outer->inputs[0], "Transpose");
  if (transpose == nullptr) return 0;
  if (transpose->attributes.ints("perm") != std::vector<int64_t>{0, 2, 1}) return 0;
  const Node* inner = r.made_by(transpose->inputs[0], "Reshape");
  if (inner == nullptr) return 0;
  const Shape& k = r.shape(inner->inputs[0]);
  const Shape& t = r.shape(k_transposed);
  const Shape& joined = r.shape(transpose->inputs[0]);
  if (k.rank() != 4 || t.rank() != 4 || joined.rank() != 3) return 0;
  const bool same = t == Shape{k[0], k[1], k[3], k[2]} && joined == Shape{k[0] * k[1], k[2], k[3]};
  return same ? inner->inputs[0] : 0;
}

// Returns the [b, h, s, d] that was transposed to [b, h, d, s]; 0: no match.
ValueId keys(Rewriter& r, ValueId k_transposed) {
  const Node* transpose = r.made_by(k_transposed, "Transpose");
  if (transpose == nullptr) return keys_of_three_axes(r, k_transposed);
  const auto perm = transpose->attributes.ints("perm");
  const ValueId source = transpose->inputs[0];
  if (perm == std::vector<int64_t>{0, 1, 3, 2}) return source;
  if (perm != std::vector<int64_t>{0, 2, 3, 1}) return 0;
  return r.emit("Transpose", transpose->name + ".keys", {source},
                {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
}

// Returns the Softmax that makes a value read only by this product. Where(IsNaN(p), 0, p) may
// follow and zero rows that are fully masked, as the operator does anyway.
const Node* probabilities(const Rewriter& r, ValueId id) {
  id = uncast(r, id);
  if (!r.read_once(id)) return nullptr;
  const Node* where = r.made_by(id, "Where");
  if (where == nullptr) return r.made_by(id, "Softmax");
  const ValueId p = where->inputs[2];
  const Node* nan = r.made_by(where->inputs[0], "IsNaN");
  const bool zeroes = nan != nullptr && nan->inputs[0] == p && r.is_scalar(where->inputs[1], 0);
  return zeroes ? r.made_by(p, "Softmax") : nullptr;
}

bool four_axes(const Rewriter& r, ValueId id) {
  return r.shape(id).rank() == 4 && r.desc(id).dtype == DType::kFloat32;
}

// Returns whether the operator takes the mask: float, two to four axes, keys last.
bool fits(const Rewriter& r, ValueId mask, const Shape& q, int64_t key_length) {
  if (mask == 0) return true;
  const Shape& m = r.shape(mask);
  if (r.desc(mask).dtype != DType::kFloat32 || m.rank() < 2 || m.rank() > 4) return false;
  const bool full = m[m.rank() - 1] == key_length && m[m.rank() - 2] == q[2];
  return full && broadcast(m, {q[0], q[1], q[2], key_length}).ok();
}

// --- the causal mask ---

constexpr double kUnreachable = -1e9;

bool may_be_causal(const Value& mask, int64_t queries, int64_t keys) {
  const Shape& shape = mask.desc.shape;
  const bool kind = is_floating(mask.desc.dtype) || mask.desc.dtype == DType::kBool;
  return mask.kind == ValueKind::kConstant && kind && shape.rank() >= 2 &&
         shape[shape.rank() - 2] == queries && shape[shape.rank() - 1] == keys;
}

// Returns whether query i sees exactly the keys up to i.
bool is_causal(const Value& mask, int64_t queries, int64_t keys) {
  if (!may_be_causal(mask, queries, keys)) return false;
  const std::vector<double> values = to_doubles(mask.desc, mask.constant->bytes.data());
  const bool truth = mask.desc.dtype == DType::kBool;
  for (int64_t at = 0; at < mask.desc.numel(); ++at) {
    const int64_t query = at / keys % queries, key = at % keys;
    const double value = values[static_cast<size_t>(at)];
    const bool seen = truth ? value != 0 : value == 0;
    const bool hidden = truth ? value == 0 : value <= kUnreachable;
    if (key <= query ? !seen : !hidden) return false;
  }
  return true;
}

}  // namespace

bool fuse_attention(Rewriter& r, const Node& node) {
  const Node* softmax = probabilities(r, node.inputs[0]);
  if (softmax == nullptr) return false;
  const int64_t axis = softmax->attributes.i("axis", -1);
  if (axis != -1 && axis != 3) return false;
  const Scores s = scores(r, uncast(r, softmax->inputs[0]));
  const ValueId v = node.inputs[1];
  if (s.q == 0 || !four_axes(r, s.q) || !four_axes(r, s.k_transposed) || !four_axes(r, v))
    return false;
  if (r.shape(v)[1] != r.shape(s.q)[1] || r.shape(s.q).numel() == 0) return false;
  if (!fits(r, s.mask, r.shape(s.q), r.shape(v)[2])) return false;
  const ValueId k = s.plain_keys ? s.k_transposed : keys(r, s.k_transposed);
  if (k == 0) return false;
  std::vector<ValueId> inputs{s.q, k, v};
  if (s.mask != 0) inputs.push_back(s.mask);
  return r.replace(node, "Attention", inputs, {{"scale", static_cast<float>(s.scale)}});
}

bool fuse_causal_mask(Rewriter& r, const Node& node) {
  if (node.inputs.size() < 4 || node.inputs[3] == 0) return false;
  const bool alone = node.inputs.size() == 4 && node.outputs.size() == 1;
  const Shape &q = r.shape(node.inputs[0]), &k = r.shape(node.inputs[1]);
  if (!alone || q.rank() != k.rank() || node.attributes.i("is_causal", 0) != 0) return false;
  const int along = q.rank() == 3 ? 1 : 2;
  if (!is_causal(r.graph().value(node.inputs[3]), q[along], k[along])) return false;
  Attributes attributes = node.attributes;
  attributes.set("is_causal", int64_t{1});
  return r.replace(node, "Attention", {node.inputs[0], node.inputs[1], node.inputs[2]}, attributes);
}

}  // namespace ofsdp::importer
