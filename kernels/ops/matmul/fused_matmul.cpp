// com.microsoft.FusedMatMul(A, B), attributes alpha, transA, transB: Y = alpha A' B', leading axes
// broadcast; A' is A with its last two axes swapped when transA, the same for B'. transBatchA and
// transBatchB are refused.
// dA' = alpha dY B'^T, dB' = alpha A'^T dY, each summed over the axes along which it was broadcast.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

bool flag(const Attributes& attributes, const char* name) { return attributes.i(name, 0) != 0; }

MatrixProduct product_of(const Attributes& attributes, const TensorDesc& a, const TensorDesc& b) {
  MatrixProduct p;
  const int ra = a.shape.rank(), rb = b.shape.rank();
  p.dtype = a.dtype;
  p.alpha = attributes.f("alpha", 1.0f);
  p.transpose_a = flag(attributes, "transA");
  p.transpose_b = flag(attributes, "transB");
  p.rows = a.shape[ra - (p.transpose_a ? 1 : 2)];
  p.inner = a.shape[ra - (p.transpose_a ? 2 : 1)];
  p.columns = b.shape[rb - (p.transpose_b ? 2 : 1)];
  for (int i = std::max(ra, rb); i > 2; --i) {
    p.batch_a.push_back(i <= ra ? a.shape[ra - i] : 1);
    p.batch_b.push_back(i <= rb ? b.shape[rb - i] : 1);
  }
  return p;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc &a = c.inputs[0], &b = c.inputs[1];
  if (flag(c.attributes, "transBatchA") || flag(c.attributes, "transBatchB")) {
    return input_error("transBatchA and transBatchB: expected 0, found 1");
  }
  if (a.dtype != b.dtype || a.shape.rank() < 2 || b.shape.rank() < 2) {
    return input_error("A and B must have one dtype and at least 2 axes, found {} and {}", a.text(),
                       b.text());
  }
  const MatrixProduct p = product_of(c.attributes, a, b);
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

void grad(GradBuilder& b) {
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

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  reference_product(product_of(c.attributes, c.inputs[0].desc, c.inputs[1].desc),
                    c.inputs[0].values, c.inputs[1].values, y.values);
  return {y};
}

MatrixProduct product(const Problem& p) { return product_of(p.attributes, p.in(0), p.in(1)); }

std::vector<SampleCase> samples() {
  auto made = [](const char* name, Shape a, Shape b, int64_t ta, int64_t tb,
                 DType dtype = DType::kFloat32, double tolerance = 2e-5) {
    return SampleCase{.name = name,
                      .attributes = {{"alpha", 0.5f}, {"transA", ta}, {"transB", tb}},
                      .inputs = {{dtype, std::move(a)}, {dtype, std::move(b)}},
                      .check_grad = dtype == DType::kFloat32,
                      .tolerance = tolerance};
  };
  return {made("plain", {2, 3, 4, 5}, {2, 3, 5, 6}, 0, 0),
          made("trans_b", {2, 4, 5}, {2, 6, 5}, 0, 1),
          made("trans_a", {2, 5, 4}, {5, 6}, 1, 0),
          made("trans_both", {3, 1, 5, 4}, {2, 6, 5}, 1, 1),
          made("empty", {0, 4, 5}, {5, 6}, 0, 0),
          made("float64", {2, 4, 5}, {5, 6}, 0, 0, DType::kFloat64, 1e-13),
          made("float16", {2, 4, 5}, {5, 6}, 0, 0, DType::kFloat16, 2e-3)};
}

}  // namespace

void add_fused_matmul(Registry& registry) {
  registry.add({.domain = "com.microsoft",
                .name = "FusedMatMul",
                .min_inputs = 2,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = product_kernels<product>(),
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
