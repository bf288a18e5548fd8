// A linear layer as one Gemm over all rows.
//
//   MatMul(x[..., k], W)            W of two axes, or Transpose of one that has
//     -> Reshape(Gemm(CollapseLeading(x), W, transB))
//   Add(that, b[n])                 -> the same Gemm with its bias
//
// The gradient of W is then one product in W's own layout, the weights are never transposed in
// memory, and the bias costs no pass.
#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {
namespace {

bool swaps_two_axes(const Rewriter& r, const Node& transpose) {
  const Shape& shape = r.shape(transpose.inputs[0]);
  const auto perm = transpose.attributes.ints("perm", {1, 0});
  return shape.rank() == 2 && perm == std::vector<int64_t>{1, 0};
}

// A Reshape of a Gemm without addend that only it reads, made by fuse_linear: that Gemm.
const Node* bare_gemm(const Rewriter& r, ValueId id) {
  if (!r.read_once(id)) return nullptr;
  if (const Node* reshape = r.made_by(id, "Reshape")) id = reshape->inputs[0];
  if (!r.read_once(id)) return nullptr;
  const Node* gemm = r.made_by(id, "Gemm");
  return gemm != nullptr && gemm->inputs.size() == 2 ? gemm : nullptr;
}

}  // namespace

bool fuse_linear(Rewriter& r, const Node& node) {
  if (node.op->full_name() != "MatMul") return false;
  const Shape& x = r.shape(node.inputs[0]);
  ValueId weights = node.inputs[1];
  bool transposed = false;
  if (const Node* transpose = r.made_by(weights, "Transpose");
      transpose != nullptr && swaps_two_axes(r, *transpose)) {
    weights = transpose->inputs[0];
    transposed = true;
  }
  if (x.rank() < 2 || r.shape(weights).rank() != 2 || x.numel() == 0) return false;
  if (r.desc(node.inputs[0]).dtype != DType::kFloat32) return false;
  const Attributes attributes{{"transB", int64_t{transposed}}};
  if (x.rank() == 2) return r.replace(node, "Gemm", {node.inputs[0], weights}, attributes);
  const std::vector<int64_t> axes = r.shape(node.outputs[0]).axes();
  const ValueId rows = r.emit("ofsdp.CollapseLeading", node.name + ".rows", {node.inputs[0]});
  const ValueId product = r.emit("Gemm", node.name + ".product", {rows, weights}, attributes);
  return r.replace(node, "Reshape", {product, r.ints(axes)});
}

bool fuse_bias(Rewriter& r, const Node& node) {
  if (node.op->full_name() != "Add") return false;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const Node* gemm = bare_gemm(r, node.inputs[side]);
    const ValueId bias = node.inputs[1 - side];
    if (gemm == nullptr || r.shape(bias).rank() != 1) continue;
    const Shape& product = r.shape(gemm->outputs[0]);
    if (r.shape(bias)[0] != product[1]) continue;
    const std::vector<ValueId> inputs{gemm->inputs[0], gemm->inputs[1], bias};
    const Attributes attributes = gemm->attributes;
    const std::string name = gemm->name;  // the product's: the pointer ends with the next emit
    const std::vector<int64_t> axes = r.shape(node.outputs[0]).axes();
    if (axes.size() == 2) return r.replace(node, "Gemm", inputs, attributes, name);
    const ValueId sum = r.emit("Gemm", name, inputs, attributes);
    return r.replace(node, "Reshape", {sum, r.ints(axes)});
  }
  return false;
}

}  // namespace ofsdp::importer
