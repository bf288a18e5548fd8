// Attention from MatMul, scale, mask, Softmax, MatMul, in the exporters' spellings:
//
//   scores = MatMul(q, k^T) [* c or / c]       k^T a Transpose of the last two axes, or of
//   scores = scores [+ mask]                   [b, s, h, d] straight to [b, h, d, s]
//   MatMul(Softmax(scores, -1), v)             q and k^T may be scaled themselves
//     -> Attention(q, k, v, mask, scale)
//
// The first product may be com.microsoft.FusedMatMul, with its alpha as a factor and, with transB,
// the keys as they are.
//
// A Cast to the type that a value has anyway, as the older exporter writes around Softmax, is
// looked through: the operator computes its Softmax in float32 as it is.
//
// A row whose mask is -infinity everywhere gives zeros, where a bare Softmax gives NaN.
//
// The causal mask: Attention(q, k, v, mask) -> Attention(q, k, v) with is_causal, when the mask
// says no more. Such a mask is a constant [..., queries, keys] that adds 0 (or is true) up to the
// diagonal. After it the mask is false, -infinity or so low (-1e9 or less) that no score brings the
// key back. Kernels skip keys that causality hides; a mask they have to read.
#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {
namespace {

// Looks through Casts that change nothing and have no other reader.
ValueId uncast(const Rewriter& r, ValueId id) {
  for (;;) {
    const Node* cast = r.read_once(id) ? r.made_by(id, "Cast") : nullptr;
    if (cast == nullptr || r.desc(cast->inputs[0]).dtype != r.desc(id).dtype) return id;
    id = cast->inputs[0];
  }
}

// Takes constant factors off a value.
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

// q k^T with its factors; q is 0 without a match.
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

// The same by way of three axes: [b, h, s, d] -> [b h, s, d] -> [b h, d, s] -> [b, h, d, s].
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

// Returns the [b, h, s, d] that is transposed to [b, h, d, s]; 0: something else.
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

// Returns the Softmax of a value that only this product reads. Where(IsNaN(p), 0, p) may follow it
// and set rows that are masked whole to zero, as the operator does anyway.
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

// A mask of the kind the operator takes: float, two to four axes, keys last.
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

// Returns whether query i sees the keys up to its own.
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
