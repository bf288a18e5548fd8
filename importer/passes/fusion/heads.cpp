// Attention that reads q, k and v where products left them and writes y where the next one reads
// it, instead of copies around it:
//
//   Attention(..., Transpose(x), ...)              -> x itself, with the layout of its heads
//   Attention of the three parts of a Split of x   -> Attention(x, -, -), with three layouts
//   Transpose(Attention(...)), columns last        -> Attention with ofsdp_result_perm
//
// Between these may be nodes that only name elements in another way (Reshape, Squeeze, ...), and
// Transposes in front of a Split. kernels/core/head_layout.h has the attributes. The gradient
// follows from them: dq, dk and dv lie as q, k and v, so no copy of a gradient is left either, and
// the gradient of x is one tensor that all three fill.
//
// Values that another node reads as well stay where they are, and so does what a rotary embedding
// or another operator makes of the heads: the copy in front of that is needed anyway. A mask that
// is trained leaves a Split apart.
#include <algorithm>

#include "importer/passes/fusion/rewriter.h"
#include "importer/passes/fusion/strided_view.h"
#include "kernels/core/head_layout.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kLayouts[] = {kQueryLayout, kKeyLayout, kValueLayout};

// A node that gives `made` by moving or naming elements of its first input.
struct Move {
  const Node* node = nullptr;
  ValueId made = 0;

  bool copies() const { return !node->op->view; }
  bool splits() const { return node->op->full_name() == "Split"; }
};

// The moves in front of an operand of attention, the nearest first.
using Moves = std::vector<Move>;

// Whether the node is ONNX's Attention with neither a past nor an output besides y.
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

// The moves up to a second Split: other parts of that are no operands.
// REQUIRES: no node is emitted while they are used.
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

// Returns the layout of an operand in the first input of moves[last], whose moves lead to it.
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

// An Attention under change: its operands, and the moves in front of each.
struct AttentionHeads {
  AttentionHeads(const Rewriter& rewriter, const Node& node)
      : r(rewriter), inputs(node.inputs), attributes(node.attributes) {
    for (size_t i = 0; i < 3; ++i) moves[i] = moves_to(r, inputs[i]);
  }

  // Reads all three operands in what one Split splits. Returns whether it does.
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

  // Reads an operand in front of the highest Transpose that a layout describes, below any Split.
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

  // The Split of which the three operands are the three parts; null: there is none.
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

// Looks through nodes that name elements as they are named already, and that nobody else reads.
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

}  // namespace ofsdp::importer
