// Attention(q, k, v, mask) -> Attention(q, k, v) with is_causal, where the mask says no more: a constant
// [..., queries, keys] that adds 0 (or is true) up to the diagonal, and behind it is false, -infinity or
// so low (-1e9 or less) that no score brings the key back. Kernels pass over keys that causality hides;
// those of a mask they have to read.
#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {
namespace {

constexpr double kUnreachable = -1e9;

bool fits(const Value& mask, int64_t queries, int64_t keys) {
  const Shape& shape = mask.desc.shape;
  const bool kind = is_floating(mask.desc.dtype) || mask.desc.dtype == DType::kBool;
  return mask.kind == ValueKind::kConstant && kind && shape.rank() >= 2 &&
         shape[shape.rank() - 2] == queries && shape[shape.rank() - 1] == keys;
}

// Query i sees the keys up to its own.
bool is_causal(const Value& mask, int64_t queries, int64_t keys) {
  if (!fits(mask, queries, keys)) return false;
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

bool fuse_causal_mask(Rewriter& r, const Node& node) {
  if (node.op->full_name() != "Attention" || node.inputs.size() < 4 || node.inputs[3] == 0) {
    return false;
  }
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
