// MatMul is numpy's matmul: Y[..., i, j] = sum_k A[..., i, k] B[..., k, j], leading axes broadcast.
// A vector A is one row, a vector B one column, and Y lacks that axis. dA = dY B^T, dB = A^T dY,
// each summed over the operand's broadcast axes.
//
// ofsdp.MatMul computes these gradients: MatMul on operands with at least 2 axes, with attributes
// transA and transB (swap the last two axes first) and fold_batch (first join all leading axes of
// both with their rows, [b, m, k] -> [b m, k], so the product also sums over the batch).
// https://onnx.ai/onnx/operators/onnx__MatMul.html
//
// com.microsoft.FusedMatMul(A, B), attributes alpha, transA, transB: Y = alpha A' B', leading axes
// broadcast. A' is A with the last two axes swapped if transA; B' in the same way. transBatchA
// first moves A's first axis in front of the last, transBatchB B's; the body does so. dA' = alpha
// dY B'^T, dB' = alpha A'^T dY, each summed over the operand's broadcast axes.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace matmul {
namespace {

Shape folded(const Shape& shape) {
  const int rank = shape.rank();
  return {shape.numel(0, rank - 1), shape[rank - 1]};
}

// Returns the operands as matrices, after fold_batch; vectors become matrices.
std::pair<Shape, Shape> as_matrices(const Attributes& attributes, Shape a, Shape b) {
  if (a.rank() == 1) a = {1, a[0]};
  if (b.rank() == 1) b = {b[0], 1};
  if (attributes.i("fold_batch", 0) != 0) return {folded(a), folded(b)};
  return {a, b};
}

Shape leading_axes(const Shape& shape) {
  return Shape(std::vector<int64_t>(shape.axes().begin(), shape.axes().end() - 2));
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& left = c.inputs[0];
  const TensorDesc& right = c.inputs[1];
  if (left.dtype != right.dtype || left.shape.rank() == 0 || right.shape.rank() == 0) {
    return input_error("A and B must have one dtype and at least one axis, found {} and {}",
                       left.text(), right.text());
  }
  const auto [a, b] = as_matrices(c.attributes, left.shape, right.shape);
  const int trans_a = c.attributes.i("transA", 0) != 0;
  const int trans_b = c.attributes.i("transB", 0) != 0;
  const int64_t inner_a = a[a.rank() - 1 - trans_a];
  const int64_t inner_b = b[b.rank() - 2 + trans_b];
  if (inner_a != inner_b) {
    return input_error("A {} and B {} disagree: inner axes {} and {}", left.shape.text(),
                       right.shape.text(), inner_a, inner_b);
  }
  OFSDP_ASSIGN_OR_RETURN(Shape batch, broadcast(leading_axes(a), leading_axes(b)));
  std::vector<int64_t> axes = batch.axes();
  if (left.shape.rank() > 1) axes.push_back(a[a.rank() - 2 + trans_a]);
  if (right.shape.rank() > 1) axes.push_back(b[b.rank() - 1 - trans_b]);
  return std::vector{TensorDesc{left.dtype, Shape(std::move(axes))}};
}

Ref reshaped(GradBuilder& b, Ref ref, const Shape& shape) {
  if (b.desc(ref).shape == shape) return ref;
  return b.emit1("Reshape", {ref, b.ints(shape.axes())}, {{"allowzero", int64_t{1}}});
}

// Returns B's gradient. If B is one matrix, the product also sums over A's batch.
Ref grad_b(GradBuilder& b, Ref a, Ref dy, Ref target) {
  const bool one_matrix = b.desc(target).shape.rank() == 2;
  const Attributes attributes{{"transA", int64_t{1}}, {"fold_batch", int64_t{one_matrix}}};
  return b.sum_to(b.emit1("ofsdp.MatMul", {a, dy}, attributes), target);
}

void grad(GradBuilder& b) {
  const Shape shape_a = b.desc(b.input(0)).shape;
  const Shape shape_b = b.desc(b.input(1)).shape;
  const auto [matrix_a, matrix_b] = as_matrices({}, shape_a, shape_b);
  std::vector<int64_t> axes = b.desc(b.output(0)).shape.axes();
  if (shape_a.rank() == 1) axes.insert(axes.end() - (shape_b.rank() > 1 ? 1 : 0), 1);
  if (shape_b.rank() == 1) axes.push_back(1);
  const Ref dy = reshaped(b, b.grad_output(0), Shape(axes));
  const Ref a = reshaped(b, b.input(0), matrix_a);
  const Ref weights = reshaped(b, b.input(1), matrix_b);
  if (b.needs_grad(0)) {
    const Ref da = b.emit1("ofsdp.MatMul", {dy, weights}, {{"transB", int64_t{1}}});
    b.set_grad(0, reshaped(b, b.sum_to(da, a), shape_a));
  }
  if (b.needs_grad(1)) b.set_grad(1, reshaped(b, grad_b(b, a, dy, weights), shape_b));
}

// Returns `axes` with ones in front until there are `count`.
std::vector<int64_t> widened(const Shape& axes, int count) {
  std::vector<int64_t> made(static_cast<size_t>(count - axes.rank()), 1);
  made.insert(made.end(), axes.axes().begin(), axes.axes().end());
  return made;
}

}  // namespace
}  // namespace matmul

MatrixProduct matmul_product(const Attributes& attributes, const TensorDesc& left,
                             const TensorDesc& right) {
  using namespace matmul;
  const auto [a, b] = as_matrices(attributes, left.shape, right.shape);
  MatrixProduct p;
  p.dtype = left.dtype;
  p.alpha = attributes.f("alpha", 1.0f);  // FusedMatMul has it
  p.transpose_a = attributes.i("transA", 0) != 0;
  p.transpose_b = attributes.i("transB", 0) != 0;
  const int batch = std::max(a.rank(), b.rank()) - 2;
  p.batch_a = widened(leading_axes(a), batch);
  p.batch_b = widened(leading_axes(b), batch);
  p.rows = a[a.rank() - (p.transpose_a ? 1 : 2)];
  p.inner = a[a.rank() - (p.transpose_a ? 2 : 1)];
  p.columns = b[b.rank() - (p.transpose_b ? 2 : 1)];
  return p;
}

namespace matmul {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  reference_product(matmul_product(c.attributes, c.inputs[0].desc, c.inputs[1].desc),
                    c.inputs[0].values, c.inputs[1].values, y.values);
  return {y};
}

MatrixProduct product(const Problem& p) { return matmul_product(p.attributes, p.in(0), p.in(1)); }

void matmul_body(BodyBuilder& b) {
  const auto& attributes = b.attributes();
  const auto as_matrix = [&](Ref ref, const char* flag) {
    const Shape& shape = b.desc(ref).shape;
    if (attributes.i("fold_batch", 0) != 0) ref = b.reshape(ref, folded(shape));
    if (attributes.i(flag, 0) == 0) return ref;
    std::vector<int64_t> order(static_cast<size_t>(b.desc(ref).shape.rank()));
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[order.size() - 1], order[order.size() - 2]);
    return b.transpose(ref, order);
  };
  const Ref left = as_matrix(b.input(0), "transA"), right = as_matrix(b.input(1), "transB");
  b.set_output(0, b.emit1("MatMul", {left, right}));
}

bool flag(const Attributes& attributes, const char* name) { return attributes.i(name, 0) != 0; }

// Returns the perm for an operand with transBatch: [1, ..., 0, last].
std::vector<int64_t> batch_order(const Attributes& attributes, const char* name, int rank) {
  std::vector<int64_t> order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  if (rank > 2 && flag(attributes, name)) {
    std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
  }
  return order;
}

Shape batch_first(const Attributes& attributes, const char* name, const Shape& shape) {
  std::vector<int64_t> axes;
  for (const int64_t axis : batch_order(attributes, name, shape.rank())) {
    axes.push_back(shape[static_cast<int>(axis)]);
  }
  return Shape(axes);
}

// Emits operators that fusion rules know.
void fused_body(BodyBuilder& b) {
  const auto operand = [&](Ref x, const char* batch, const char* last) {
    std::vector<int64_t> order = batch_order(b.attributes(), batch, b.desc(x).shape.rank());
    if (flag(b.attributes(), last)) std::swap(order.end()[-1], order.end()[-2]);
    return std::ranges::is_sorted(order) ? x : b.transpose(x, order);
  };
  const Ref left = operand(b.input(0), "transBatchA", "transA");
  const Ref right = operand(b.input(1), "transBatchB", "transB");
  const Ref product = b.emit1("MatMul", {left, right});
  const auto alpha = static_cast<double>(b.attributes().f("alpha", 1.0f));
  b.set_output(0, alpha == 1 ? product : b.mul(product, alpha));
}

std::vector<RefTensor> fused_reference(const ReferenceContext& c) {
  const auto operand = [&](size_t i, const char* name) {
    const RefTensor& x = c.inputs[i];
    const auto order = batch_order(c.attributes, name, x.desc.shape.rank());
    RefTensor made = zeros({x.desc.dtype, batch_first(c.attributes, name, x.desc.shape)});
    for (int64_t at = 0; at < made.desc.numel(); ++at) {
      const auto to = unravel(made.desc.shape, at);
      std::vector<int64_t> from(to.size());
      for (size_t k = 0; k < to.size(); ++k) from[static_cast<size_t>(order[k])] = to[k];
      made[at] = x.values[ravel(x.desc.shape, from)];
    }
    return made;
  };
  const RefTensor a = operand(0, "transBatchA"), b = operand(1, "transBatchB");
  RefTensor y{c.output_descs[0], {}};
  reference_product(matmul_product(c.attributes, a.desc, b.desc), a.values, b.values, y.values);
  return {y};
}

Result<std::vector<TensorDesc>> fused_infer(const InferContext& c) {
  TensorDesc a = c.inputs[0], b = c.inputs[1];
  a.shape = batch_first(c.attributes, "transBatchA", a.shape);
  b.shape = batch_first(c.attributes, "transBatchB", b.shape);
  if (a.dtype != b.dtype || a.shape.rank() < 2 || b.shape.rank() < 2) {
    return input_error("A and B must have one dtype and at least 2 axes, found {} and {}", a.text(),
                       b.text());
  }
  const MatrixProduct p = matmul_product(c.attributes, a, b);
  const int64_t inner_b = b.shape[b.shape.rank() - (p.transpose_b ? 1 : 2)];
  if (p.inner != inner_b) {
    return input_error("A {} and B {} disagree: inner axes {} and {}", a.text(), b.text(), p.inner,
                       inner_b);
  }
  OFSDP_ASSIGN_OR_RETURN(const Shape batch, broadcast(Shape(p.batch_a), Shape(p.batch_b)));
  std::vector<int64_t> axes = batch.axes();
  axes.insert(axes.end(), {p.rows, p.columns});
  return std::vector{TensorDesc{a.dtype, Shape(axes)}};
}

void fused_grad(GradBuilder& b) {
  const bool ta = flag(b.attributes(), "transA"), tb = flag(b.attributes(), "transB");
  auto product = [&](Ref left, Ref right, bool trans_left, bool trans_right) {
    return b.emit1("com.microsoft.FusedMatMul", {left, right},
                   {{"alpha", b.attributes().f("alpha", 1.0f)},
                    {"transA", int64_t{trans_left}},
                    {"transB", int64_t{trans_right}}});
  };
  const Ref dy = b.grad_output(0), left = b.input(0), right = b.input(1);
  if (b.needs_grad(0)) {
    b.set_grad(0,
               b.sum_to(ta ? product(right, dy, tb, true) : product(dy, right, false, !tb), left));
  }
  if (b.needs_grad(1)) {
    b.set_grad(1,
               b.sum_to(tb ? product(dy, left, true, ta) : product(left, dy, !ta, false), right));
  }
}

}  // namespace
}  // namespace matmul

void add_matmul(Registry& registry) {
  using namespace matmul;
  registry.add(make_op("MatMul", {infer, grad, reference}, product_kernels<product>(),
                       {.min_inputs = 2, .costly = true, .product = true}));
  registry.add_own(make_op("MatMul", {infer, nullptr, reference}, product_kernels<product>(),
                           {.min_inputs = 2, .body = matmul_body, .product = true}));
  registry.add(make_op("FusedMatMul", {fused_infer, fused_grad, fused_reference},
                       product_kernels<product>(),
                       {.domain = "com.microsoft",
                        .min_inputs = 2,
                        .body = fused_body,
                        .costly = true,
                        .product = true}));
}

}  // namespace ofsdp::kernels::ops
