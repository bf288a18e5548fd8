#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "importer/passes/fusion/fusion.h"

namespace ofsdp::importer {

// Layers that exporters take apart.
//
// A linear layer as one Gemm over all rows:
//
//   MatMul(x[..., k], W)            W with two axes, or such a W transposed
//     -> Reshape(Gemm(CollapseLeading(x), W, transB))
//   Add(that, b[n])                 -> the same Gemm with the bias
//
// com.microsoft.FusedMatMul is such a product too, with the transB and alpha. com.microsoft's
// BiasGelu and FastGelu give their bias to the product and become a plain Gelu. W's gradient is
// then one product in W's own layout, memory never holds transposed weights, and the bias costs no
// pass.
//
// Gelu in both forms from the pieces, with products in any order:
//
//   x * 0.5 * (1 + erf(x / sqrt(2)))                                -> Gelu(x)
//   x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))       -> Gelu(x, approximate="tanh")
//
// NegativeLogLikelihoodLoss(LogSoftmax(x)) over the class axis -> SoftmaxCrossEntropyLoss(x): both
// have the gradient softmax minus one-hot, made in place.
//
// MaxPool(Relu(x)) -> MaxPool(x) with ofsdp_activation="relu", if nothing else reads the Relu: the
// largest clamped value is the clamped largest value, and a clamped window's gradient stops either
// way. The pool then clamps a fourth as many elements.

namespace {

// --- linear ---

bool swaps_two_axes(const Rewriter& r, const Node& transpose) {
  const Shape& shape = r.shape(transpose.inputs[0]);
  const auto perm = transpose.attributes.ints("perm", {1, 0});
  return shape.rank() == 2 && perm == std::vector<int64_t>{1, 0};
}

// Returns the Gemm without addend under a Reshape that alone reads it, as fuse_linear makes them.
const Node* bare_gemm(const Rewriter& r, ValueId id) {
  if (!r.read_once(id)) return nullptr;
  if (const Node* reshape = r.made_by(id, "Reshape")) id = reshape->inputs[0];
  if (!r.read_once(id)) return nullptr;
  const Node* gemm = r.made_by(id, "Gemm");
  return gemm != nullptr && gemm->inputs.size() == 2 ? gemm : nullptr;
}

// A Gemm that takes an addend from outside.
struct BiasedGemm {
  std::string name;  // the product's
  std::vector<ValueId> inputs;
  Attributes attributes;
};

// Matches the product that ends in `sum` and adds `bias` to it. The Gemm had no addend, so the beta
// had scaled nothing.
std::optional<BiasedGemm> biased_gemm(const Rewriter& r, ValueId sum, ValueId bias) {
  const Node* gemm = bare_gemm(r, sum);
  if (gemm == nullptr || r.shape(bias).rank() != 1) return std::nullopt;
  if (r.shape(bias)[0] != r.shape(gemm->outputs[0])[1]) return std::nullopt;
  BiasedGemm made{gemm->name, {gemm->inputs[0], gemm->inputs[1], bias}, gemm->attributes};
  made.attributes.set("beta", 1.0f);
  return made;
}

// Emits the product with shape `axes`; 0: no match.
ValueId biased_product(Rewriter& r, ValueId sum, ValueId bias, const std::vector<int64_t>& axes) {
  const auto gemm = biased_gemm(r, sum, bias);
  if (!gemm) return 0;
  const ValueId made = r.emit("Gemm", gemm->name, gemm->inputs, gemm->attributes);
  return axes.size() == 2 ? made : r.emit("Reshape", gemm->name + ".shaped", {made, r.ints(axes)});
}

// --- Gelu ---

// A product taken apart: its constant factor, and the other factors with powers written out.
struct Factors {
  double constant = 1;
  std::vector<ValueId> values;
  int looked_at = 0;
};

// No pattern has so many factors, but a file may have a product with any length.
constexpr int kMaxFactors = 64;

void collect(const Rewriter& r, ValueId id, bool top, Factors& out) {
  if (++out.looked_at > kMaxFactors) {
    out.values.push_back(id);
    return;
  }
  if (const auto number = r.scalar(id)) {
    out.constant *= *number;
    return;
  }
  const bool inner = top || r.read_once(id);
  const Node* mul = inner ? r.made_by(id, "Mul") : nullptr;
  const Node* div = inner ? r.made_by(id, "Div") : nullptr;
  const Node* pow = r.made_by(id, "Pow");
  if (mul != nullptr) {
    collect(r, mul->inputs[0], false, out);
    collect(r, mul->inputs[1], false, out);
  } else if (div != nullptr && r.scalar(div->inputs[1])) {
    collect(r, div->inputs[0], false, out);
    out.constant /= *r.scalar(div->inputs[1]);
  } else if (pow != nullptr && r.is_scalar(pow->inputs[1], 3)) {
    out.values.insert(out.values.end(), 3, pow->inputs[0]);
  } else {
    out.values.push_back(id);
  }
}

Factors factors(const Rewriter& r, ValueId id) {
  Factors made;
  collect(r, id, true, made);
  return made;
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-4 * std::abs(b); }

// Returns the node `op` in 1 + op(...), or null.
const Node* one_plus(const Rewriter& r, ValueId id, const char* op) {
  const Node* add = r.made_by(id, "Add");
  if (add == nullptr) return nullptr;
  for (const auto& [value, one] : Rewriter::both_orders(*add)) {
    const Node* inner = r.made_by(value, op);
    if (inner != nullptr && r.is_scalar(one, 1)) return inner;
  }
  return nullptr;
}

// Returns whether the value is `values` multiplied, with a constant.
bool is_product(const Rewriter& r, ValueId id, const std::vector<ValueId>& values,
                double constant) {
  const Factors f = factors(r, id);
  return f.values == values && near(f.constant, constant);
}

bool is_tanh_argument(const Rewriter& r, ValueId id, ValueId x) {
  const Factors f = factors(r, id);
  if (f.values.size() != 1 || !near(f.constant, std::sqrt(2 / std::numbers::pi))) return false;
  const Node* sum = r.made_by(f.values[0], "Add");
  if (sum == nullptr) return false;
  return std::ranges::any_of(Rewriter::both_orders(*sum), [&](const auto& order) {
    return order.first == x && is_product(r, order.second, {x, x, x}, 0.044715);
  });
}

}  // namespace

bool fuse_linear(Rewriter& r, const Node& node) {
  const bool fused = is_operator(node, "com.microsoft.FusedMatMul");
  if (!fused && !is_operator(node, "MatMul")) return false;
  if (node.attributes.i("transA", 0) != 0) return false;
  const Shape& x = r.shape(node.inputs[0]);
  ValueId weights = node.inputs[1];
  bool transposed = node.attributes.i("transB", 0) != 0;
  if (const Node* transpose = r.made_by(weights, "Transpose");
      transpose != nullptr && swaps_two_axes(r, *transpose)) {
    weights = transpose->inputs[0];
    transposed = !transposed;
  }
  if (x.rank() < 2 || r.shape(weights).rank() != 2 || x.numel() == 0) return false;
  if (r.desc(node.inputs[0]).dtype != DType::kFloat32) return false;
  Attributes attributes{{"transB", int64_t{transposed}}};
  if (fused) attributes.set("alpha", node.attributes.f("alpha", 1));
  if (x.rank() == 2) return r.replace(node, "Gemm", {node.inputs[0], weights}, attributes);
  const std::vector<int64_t> axes = r.shape(node.outputs[0]).axes();
  const ValueId rows = r.emit("ofsdp.CollapseLeading", node.name + ".rows", {node.inputs[0]});
  const ValueId product = r.emit("Gemm", node.name + ".product", {rows, weights}, attributes);
  return r.replace(node, "Reshape", {product, r.ints(axes)});
}

bool fuse_bias(Rewriter& r, const Node& node) {
  for (const auto& [sum, bias] : Rewriter::both_orders(node)) {
    const auto gemm = biased_gemm(r, sum, bias);
    if (!gemm) continue;
    const std::vector<int64_t> axes = r.shape(node.outputs[0]).axes();
    if (axes.size() == 2)
      return r.replace(node, "Gemm", gemm->inputs, gemm->attributes, gemm->name);
    const ValueId made = r.emit("Gemm", gemm->name, gemm->inputs, gemm->attributes);
    return r.replace(node, "Reshape", {made, r.ints(axes)});
  }
  return false;
}

bool fuse_bias_gelu(Rewriter& r, const Node& node) {
  const bool tanh = is_operator(node, "com.microsoft.FastGelu");
  if (!tanh && !is_operator(node, "com.microsoft.BiasGelu")) return false;
  ValueId x = node.inputs[0];
  if (r.desc(x).dtype != DType::kFloat32) return false;
  const std::vector<int64_t> axes = r.shape(node.outputs[0]).axes();
  if (node.inputs.size() > 1 && node.inputs[1] != 0) {
    x = biased_product(r, x, node.inputs[1], axes);
  }
  return x != 0 &&
         r.replace(node, "Gelu", {x}, {{"approximate", std::string(tanh ? "tanh" : "none")}});
}

bool fuse_gelu(Rewriter& r, const Node& node) {
  Factors f;
  collect(r, node.inputs[0], false, f);
  collect(r, node.inputs[1], false, f);
  if (f.values.size() != 2 || !near(f.constant, 0.5)) return false;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId x = f.values[side], gate = f.values[1 - side];
    const Node* erf = one_plus(r, gate, "Erf");
    if (erf != nullptr && is_product(r, erf->inputs[0], {x}, 1 / std::numbers::sqrt2))
      return r.replace(node, "Gelu", {x});
    const Node* tanh = one_plus(r, gate, "Tanh");
    if (tanh != nullptr && is_tanh_argument(r, tanh->inputs[0], x)) {
      return r.replace(node, "Gelu", {x}, {{"approximate", std::string("tanh")}});
    }
  }
  return false;
}

bool fuse_log_softmax_loss(Rewriter& r, const Node& node) {
  const Node* collapse = r.made_by(node.inputs[0], "ofsdp.CollapseLeading");
  const ValueId rows = collapse != nullptr ? collapse->inputs[0] : node.inputs[0];
  const Node* softmax = r.made_by(rows, "LogSoftmax");
  if (softmax == nullptr || !r.read_once(rows) || !r.read_once(node.inputs[0])) return false;
  const int rank = r.shape(rows).rank();
  const int64_t axis = softmax->attributes.i("axis", -1);
  if (axis != -1 && axis != rank - 1) return false;
  if (r.shape(node.inputs[0]).rank() != 2 || r.shape(node.outputs[0]).rank() != 0) return false;
  std::vector<ValueId> inputs = node.inputs;
  inputs[0] = softmax->inputs[0];
  if (collapse != nullptr) {
    inputs[0] = r.emit("ofsdp.CollapseLeading", node.name + ".rows", {softmax->inputs[0]});
  }
  return r.replace(node, "SoftmaxCrossEntropyLoss", inputs, node.attributes);
}

bool fuse_max_pool_relu(Rewriter& r, const Node& node) {
  const bool indices = node.outputs.size() > 1 && node.outputs[1] != 0;
  if (indices || !r.read_once(node.inputs[0])) return false;
  const Node* relu = r.made_by(node.inputs[0], "Relu");
  if (relu == nullptr || r.desc(node.inputs[0]).dtype != DType::kFloat32) return false;
  Attributes attributes = node.attributes;
  attributes.set("ofsdp_activation", std::string("relu"));
  return r.replace(node, "MaxPool", {relu->inputs[0]}, attributes);
}

// LayerNormalization and RMSNormalization over the last axis from their pieces.
//
//   d = x - mean(x);  d / sqrt(mean(d^2) + eps) * scale + bias     -> LayerNormalization
//   x / sqrt(mean(x^2) + eps) * scale                              -> RMSNormalization

namespace {

// Returns the input if the value is a mean over the last axis that keeps the axis, or 0.
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

// Returns x if this is x squared, else 0.
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

// Matches sqrt(mean(v^2) + eps).
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

// Matches v / rms(v) or v * (1 / rms(v)); returns v and epsilon.
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

// A node's normalized operand, and the other operand.
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
  // A centered value belongs to LayerNormalization, and the Mul does not end the pattern.
  if (s.scale == 0 || r.made_by(s.rms.of, "Sub") != nullptr) return false;
  return r.replace(node, "RMSNormalization", {s.rms.of, s.scale},
                   {{"axis", int64_t{-1}}, {"epsilon", s.rms.epsilon}});
}

}  // namespace ofsdp::importer
