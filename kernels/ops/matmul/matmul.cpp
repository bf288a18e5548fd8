// MatMul: numpy's matmul, Y[..., i, j] = sum_k A[..., i, k] B[..., k, j], leading axes broadcast; a
// vector A counts as one row, a vector B as one column, and that axis is dropped from Y.
// dA = dY B^T, dB = A^T dY, each summed over the axes along which the operand was broadcast.
// ofsdp.MatMul (for these gradients) is the same on operands of at least 2 axes, with attributes
// transA and transB (swap the last two axes first) and fold_batch (first join all leading axes of
// both with the rows they hold, [b, m, k] -> [b m, k]: the sum over the batch becomes part of the
// product). https://onnx.ai/onnx/operators/onnx__MatMul.html
#include <numeric>
#include <utility>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Shape folded(const Shape& shape) {
  const int rank = shape.rank();
  return {shape.numel(0, rank - 1), shape[rank - 1]};
}

// The operands as matrices, after fold_batch and with vectors made matrices.
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

// The gradient of B: with a B of one matrix the sum over A's batch is part of the product.
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

// `axes` with ones in front until there are `count`.
std::vector<int64_t> widened(const Shape& axes, int count) {
  std::vector<int64_t> made(static_cast<size_t>(count - axes.rank()), 1);
  made.insert(made.end(), axes.axes().begin(), axes.axes().end());
  return made;
}

MatrixProduct product_of(const Attributes& attributes, const TensorDesc& left,
                         const TensorDesc& right) {
  const auto [a, b] = as_matrices(attributes, left.shape, right.shape);
  MatrixProduct p;
  p.dtype = left.dtype;
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

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  reference_product(product_of(c.attributes, c.inputs[0].desc, c.inputs[1].desc),
                    c.inputs[0].values, c.inputs[1].values, y.values);
  return {y};
}

MatrixProduct product(const Problem& p) { return product_of(p.attributes, p.in(0), p.in(1)); }

SampleCase sample_of(const char* name, DType dtype, double tolerance) {
  return {.name = name,
          .inputs = {{dtype, {2, 1, 4, 5}}, {dtype, {3, 5, 6}}},
          .check_grad = false,
          .tolerance = tolerance};
}

SampleCase sample(const char* name, Shape a, Shape b, Attributes attributes = {}) {
  return {.name = name,
          .attributes = std::move(attributes),
          .inputs = {{DType::kFloat32, std::move(a)}, {DType::kFloat32, std::move(b)}}};
}

std::vector<SampleCase> samples() {
  return {sample("matrices", {5, 7}, {7, 3}),
          sample("weights", {2, 3, 4, 5}, {5, 6}),
          sample("batched", {2, 3, 4, 5}, {2, 3, 5, 6}),
          sample("broadcast_both", {2, 1, 4, 5}, {3, 5, 6}),
          sample("broadcast_left", {4, 5}, {2, 5, 6}),
          sample("row_vector", {5}, {2, 5, 6}),
          sample("column_vector", {2, 4, 5}, {5}),
          sample("vectors", {5}, {5}),
          sample("empty_batch", {0, 4, 5}, {5, 6}),
          sample("no_inner", {3, 0}, {0, 2}),
          sample_of("float64", DType::kFloat64, 1e-13),
          sample_of("float16", DType::kFloat16, 2e-3),
          sample_of("bfloat16", DType::kBFloat16, 1e-2),
          sample_of("int32", DType::kInt32, 0)};
}

std::vector<SampleCase> own_samples() {
  const Attributes trans_a{{"transA", int64_t{1}}};
  const Attributes trans_b{{"transB", int64_t{1}}};
  const Attributes fold{{"transA", int64_t{1}}, {"fold_batch", int64_t{1}}};
  return {sample("trans_a", {2, 5, 4}, {2, 5, 3}, trans_a),
          sample("trans_b", {2, 4, 5}, {3, 5}, trans_b),
          sample("trans_b_batched", {2, 4, 5}, {2, 3, 5}, trans_b),
          sample("trans_b_broadcast", {2, 3, 4, 5}, {3, 6, 5}, trans_b),
          sample("trans_a_broadcast", {2, 1, 5, 4}, {3, 5, 2}, trans_a),
          sample("folded", {2, 3, 4}, {2, 3, 5}, fold),
          sample("folded_empty", {0, 3, 4}, {0, 3, 5}, fold)};
}

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

}  // namespace

void add_matmul(Registry& registry) {
  registry.add({.name = "MatMul",
                .min_inputs = 2,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = product_kernels<product>(),
                .samples = samples});
  registry.add({.domain = kOwnDomain,
                .name = "MatMul",
                .min_inputs = 2,
                .infer = infer,
                .body = matmul_body,
                .reference = reference,
                .cpu = product_kernels<product>(),
                .samples = own_samples});
}

}  // namespace ofsdp::kernels::ops
