#include <algorithm>
#include <array>
#include <string_view>

#include "importer/passes/fusion/fusion.h"
#include "kernels/core/planned_operands.h"

namespace ofsdp::importer {

// Exporters build a mask from two parts: a constant, the keys of each query, and the batch's own,
// the keys of each sample:
//
//   Attention(q, k, v, And(causal, padding))    a band is found in Where(And(..), 0, -3.4e38),
//                                               Expand(padding) and causal + padding, too
//     -> Attention with ofsdp_mask_band         (kernels/core/planned_operands.h)
//
// The mask stays, and so do all results: a GPU computes the same with lengths of samples and a
// window.

namespace {

constexpr int kDeepest = 32;  // nodes above a mask

struct Band {
  int64_t left = -1, right = -1;  // -1: open
};

int64_t narrower(int64_t a, int64_t b) { return a < 0 || b < 0 ? std::max(a, b) : std::min(a, b); }
std::optional<Band> both(const std::optional<Band>& a, const std::optional<Band>& b) {
  if (!a || !b) return std::nullopt;
  return Band{narrower(a->left, b->left), narrower(a->right, b->right)};
}

// Reads masks of scores [..., size, size].
class MaskReader {
 public:
  MaskReader(const Rewriter& r, int64_t size) : r_(r), size_(size) {}

  // Returns the band of which the mask shows a part, the same keys for all queries; none: it is not
  // known to. The mask is of truth values or addends.
  std::optional<Band> band(ValueId id, int depth = 0) const {
    if (depth > kDeepest) return std::nullopt;
    if (same_rows(id)) return Band{};
    if (r_.graph().value(id).kind == ValueKind::kConstant) return constant_band(id);
    const Node* node = r_.maker(id);
    if (node == nullptr) return std::nullopt;
    const auto of = [&](size_t i) { return band(node->inputs[i], depth + 1); };
    const bool addends = is_floating(r_.desc(id).dtype);
    if (is_operator(*node, "And")) return both(of(0), of(1));
    if (addends && is_operator(*node, "Add")) return both(of(0), of(1));
    if (addends && is_operator(*node, "Where")) return where_band(*node, depth);
    return passes_matrices(*node, id) ? of(0) : std::nullopt;
  }

 private:
  // Returns whether the value is the same in all rows: it does not change along the axis before the
  // last.
  bool same_rows(ValueId id, int depth = 0) const {
    const Shape& shape = r_.shape(id);
    if (shape.rank() < 2 || shape[shape.rank() - 2] == 1) return true;
    if (depth > kDeepest) return false;
    if (r_.graph().value(id).kind == ValueKind::kConstant) return constant_rows(id);
    const Node* node = r_.maker(id);
    if (node == nullptr) return false;
    const auto same = [&](ValueId input) { return input == 0 || same_rows(input, depth + 1); };
    if (is_operator(*node, "Expand") || passes_matrices(*node, id)) return same(node->inputs[0]);
    return is_elementwise(*node) && std::ranges::all_of(node->inputs, same);
  }

  static bool is_elementwise(const Node& node) {
    constexpr std::string_view kNames =
        " Add And Cast CastLike Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Neg"
        " Not Or Sub Where Xor ";
    return kNames.find(" " + node.op->full_name() + " ") != std::string_view::npos;
  }

  // Returns whether the node's output holds the matrices of its first input, as they are.
  bool passes_matrices(const Node& node, ValueId id) const {
    const Shape &from = r_.shape(node.inputs[0]), &to = r_.shape(id);
    const bool matrices = from.rank() >= 2 && to.rank() >= 2 &&
                          from[from.rank() - 1] == to[to.rank() - 1] &&
                          from[from.rank() - 2] == to[to.rank() - 2];
    const bool alike = is_floating(r_.desc(id).dtype) == is_floating(r_.desc(node.inputs[0]).dtype);
    const bool moves =
        node.op->view || is_operator(node, "Expand") || (is_operator(node, "Cast") && alike);
    return matrices && moves && !is_operator(node, "Transpose");
  }

  // Takes Where(seen, addends, hidden) and Where(Not(seen), hidden, addends).
  std::optional<Band> where_band(const Node& node, int depth) const {
    if (hides(node.inputs[2])) {
      return both(band(node.inputs[0], depth + 1), band(node.inputs[1], depth + 1));
    }
    const Node* negated = r_.made_by(node.inputs[0], "Not");
    if (negated == nullptr || !hides(node.inputs[1])) return std::nullopt;
    return both(band(negated->inputs[0], depth + 1), band(node.inputs[2], depth + 1));
  }
  bool hides(ValueId id) const {
    const auto addend = r_.scalar(id);
    return addend && *addend <= kHiddenScore;
  }

  std::vector<double> numbers(ValueId id) const {
    const Value& value = r_.graph().value(id);
    return to_doubles(value.desc, value.constant->bytes.data());
  }

  bool constant_rows(ValueId id) const {
    const Shape& shape = r_.shape(id);
    const auto width = static_cast<size_t>(shape[shape.rank() - 1]);
    const size_t matrix = width * static_cast<size_t>(shape[shape.rank() - 2]);
    const std::vector<double> all = numbers(id);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != all[i / matrix * matrix + i % width]) return false;
    }
    return true;
  }

  // The widest reach of a row to either side; then all elements must fit it.
  std::optional<Band> constant_band(ValueId id) const {
    const Shape& shape = r_.shape(id);
    if (shape[shape.rank() - 1] != size_ || shape[shape.rank() - 2] != size_) return std::nullopt;
    const bool truth = r_.desc(id).dtype == DType::kBool;
    const std::vector<double> all = numbers(id);
    const auto seen = [&](int64_t i) {
      const double value = all[static_cast<size_t>(i)];
      return truth ? value != 0 : value == 0;
    };
    int64_t left = 0, right = 0;
    for (int64_t i = 0; i < size_ * size_; ++i) {
      const int64_t query = i / size_, key = i % size_;
      if (seen(i)) left = std::max(left, query - key), right = std::max(right, key - query);
    }
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const int64_t query = i / size_ % size_, key = i % size_;
      const bool inside = key >= query - left && key <= query + right;
      if (seen(i) != inside) return std::nullopt;
      if (!inside && !truth && !(all[static_cast<size_t>(i)] <= kHiddenScore)) return std::nullopt;
    }
    return Band{left == size_ - 1 ? -1 : left, right == size_ - 1 ? -1 : right};
  }

  const Rewriter& r_;
  int64_t size_;
};

}  // namespace

bool fuse_mask_band(Rewriter& r, const Node& node) {
  const ValueId mask = node.inputs.size() > 3 ? node.inputs[3] : 0;
  if (mask == 0 || node.inputs.size() > 4 || node.attributes.has(kMaskBand) ||
      node.outputs.size() != 1) {
    return false;
  }
  const Shape &q = r.shape(node.inputs[0]), &k = r.shape(node.inputs[1]), &m = r.shape(mask);
  if (q.rank() != k.rank() || q.rank() < 3 || m.rank() < 2 || r.trained(mask)) return false;
  const int64_t size = q[q.rank() - 2];
  const bool square = k[k.rank() - 2] == size && m[m.rank() - 1] == size && m[m.rank() - 2] == size;
  if (!square || size < 2) return false;
  const std::optional<Band> band = MaskReader(r, size).band(mask);
  if (!band) return false;
  Attributes attributes = node.attributes;
  attributes.set(kMaskBand, std::vector<int64_t>{band->left, band->right});
  std::vector<ValueId> inputs = node.inputs;
  return r.replace(node, "Attention", inputs, attributes);
}

}  // namespace ofsdp::importer
