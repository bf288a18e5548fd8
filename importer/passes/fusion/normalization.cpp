// LayerNormalization and RMSNormalization over the last axis from their pieces.
//
//   d = x - mean(x);  d / sqrt(mean(d^2) + eps) * scale + bias     -> LayerNormalization
//   x / sqrt(mean(x^2) + eps) * scale                              -> RMSNormalization
#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {
namespace {

// mean over the last axis, kept: its input, or 0.
ValueId mean_of(const Rewriter& r, ValueId id) {
  const Node* mean = r.made_by(id, "ReduceMean");
  if (mean == nullptr || mean->attributes.i("keepdims", 1) == 0 || mean->inputs.size() < 2)
    return 0;
  const Constant* axes = r.graph().value(mean->inputs[1]).constant.get();
  const int rank = r.shape(mean->inputs[0]).rank();
  if (axes == nullptr || axes->desc.numel() != 1) return 0;
  const int64_t axis = axes->as<int64_t>()[0];
  return axis == -1 || axis == rank - 1 ? mean->inputs[0] : 0;
}

// The value whose square this is, or 0.
ValueId square_of(const Rewriter& r, ValueId id) {
  const Node* pow = r.made_by(id, "Pow");
  if (pow != nullptr && r.is_scalar(pow->inputs[1], 2)) return pow->inputs[0];
  const Node* mul = r.made_by(id, "Mul");
  return mul != nullptr && mul->inputs[0] == mul->inputs[1] ? mul->inputs[0] : 0;
}

struct RootMeanSquare {
  ValueId of = 0;  // 0: no match
  float epsilon = 0;
};

// sqrt(mean(v^2) + eps)
RootMeanSquare root_mean_square(const Rewriter& r, ValueId id) {
  const Node* root = r.made_by(id, "Sqrt");
  const Node* sum = root == nullptr ? nullptr : r.made_by(root->inputs[0], "Add");
  if (sum == nullptr) return {};
  for (const auto& [squares, other] : Rewriter::both_orders(*sum)) {
    const auto epsilon = r.scalar(other);
    const ValueId mean = epsilon ? mean_of(r, squares) : 0;
    const ValueId value = mean == 0 ? 0 : square_of(r, mean);
    if (value != 0) return {value, static_cast<float>(*epsilon)};
  }
  return {};
}

// v / rms(v), or v * (1 / rms(v)): v and its epsilon.
RootMeanSquare normalized(const Rewriter& r, ValueId id) {
  if (const Node* div = r.made_by(id, "Div")) {
    const RootMeanSquare rms = root_mean_square(r, div->inputs[1]);
    return rms.of == div->inputs[0] ? rms : RootMeanSquare{};
  }
  const Node* mul = r.made_by(id, "Mul");
  if (mul == nullptr) return {};
  for (const auto& [value, inverse] : Rewriter::both_orders(*mul)) {
    const Node* reciprocal = r.made_by(inverse, "Reciprocal");
    const Node* quotient = r.made_by(inverse, "Div");
    ValueId root = reciprocal != nullptr ? reciprocal->inputs[0] : 0;
    if (quotient != nullptr && r.is_scalar(quotient->inputs[0], 1)) root = quotient->inputs[1];
    const RootMeanSquare rms = root == 0 ? RootMeanSquare{} : root_mean_square(r, root);
    if (rms.of != 0 && rms.of == value) return rms;
  }
  return {};
}

// The normalized operand of a node, and the other.
struct Scaled {
  RootMeanSquare rms;
  ValueId scale = 0;
};

Scaled scaled(const Rewriter& r, const Node& mul) {
  for (const auto& [value, scale] : Rewriter::both_orders(mul)) {
    const RootMeanSquare rms = normalized(r, value);
    if (rms.of == 0 || r.shape(scale).rank() != 1) continue;
    const Shape& shape = r.shape(rms.of);
    if (r.shape(scale)[0] == shape[shape.rank() - 1]) return {rms, scale};
  }
  return {};
}

}  // namespace

bool fuse_layer_norm(Rewriter& r, const Node& node) {
  for (const auto& [product, bias] : Rewriter::both_orders(node)) {
    const Node* mul = r.made_by(product, "Mul");
    const Scaled s = mul == nullptr ? Scaled{} : scaled(r, *mul);
    if (s.scale == 0 || !(r.shape(bias) == r.shape(s.scale))) continue;
    const Node* centered = r.made_by(s.rms.of, "Sub");
    if (centered == nullptr || mean_of(r, centered->inputs[1]) != centered->inputs[0]) continue;
    return r.replace(node, "LayerNormalization", {centered->inputs[0], s.scale, bias},
                     {{"axis", int64_t{-1}}, {"epsilon", s.rms.epsilon}});
  }
  return false;
}

bool fuse_rms_norm(Rewriter& r, const Node& node) {
  const Scaled s = scaled(r, node);
  // Something centered is LayerNormalization's; its Mul is not the end of the pattern.
  if (s.scale == 0 || r.made_by(s.rms.of, "Sub") != nullptr) return false;
  return r.replace(node, "RMSNormalization", {s.rms.of, s.scale},
                   {{"axis", int64_t{-1}}, {"epsilon", s.rms.epsilon}});
}

}  // namespace ofsdp::importer
