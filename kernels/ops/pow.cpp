// Pow(x, e): y = x^e, broadcast. dx = dy e x^(e-1), de = dy y ln x, each summed over what was
// broadcast. An exponent of 2 or 0.5, which variances and norms are written with, is a product or a
// root. https://onnx.ai/onnx/operators/onnx__Pow.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref e = b.input(1);
  if (b.needs_grad(0)) {
    const Ref lower = b.emit1("Sub", {e, b.scalar(b.desc(e).dtype, 1)});
    const Ref slope = b.emit1("Mul", {b.emit1("Pow", {b.input(0), lower}), e});
    b.set_grad(0, b.sum_to(b.emit1("Mul", {dy, slope}), b.input(0)));
  }
  if (!b.needs_grad(1)) return;
  const Ref slope = b.emit1("Mul", {b.output(0), b.emit1("Log", {b.input(0)})});
  b.set_grad(1, b.sum_to(b.emit1("Mul", {dy, slope}), e));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double x, double e) { return std::pow(x, e); });
}

OFSDP_MULTIARCH void square(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return v * v; });
}

OFSDP_MULTIARCH void root(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return __builtin_sqrtf(v); });
}

void pow_row(const BinaryRow<float>& row) {
  const bool one_exponent = row.step_a == 1 && row.step_b == 0;
  if (one_exponent && *row.b == 2.0f) return square(row.a, row.y, row.n);
  if (one_exponent && *row.b == 0.5f) return root(row.a, row.y, row.n);
  binary_row(row, [](float x, float e) { return std::pow(x, e); });
}

void positive(size_t input, std::vector<double>& values) {
  if (input != 0) return;
  for (double& v : values) v = std::abs(v) + 0.5;
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = binary_samples(positive);
  const TensorDesc x{DType::kFloat32, {3, 7}};
  for (double e : {2.0, 0.5, 3.0, -1.0}) {
    list.push_back({.name = fmt::format("exponent_{}", e),
                    .inputs = {x, {DType::kFloat32, {}}},
                    .fill =
                        [e](size_t input, std::vector<double>& values) {
                          positive(input, values);
                          if (input == 1) values[0] = e;
                        },
                    .constant_inputs = {1}});
  }
  return list;
}

}  // namespace

void add_pow(Registry& registry) {
  registry.add({.name = "Pow",
                .min_inputs = 2,
                .first_opset = 7,
                .infer = infer_binary,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_binary<float>, create_binary<float, float, pow_row>}},
                .samples = samples,
                .inplace_inputs = {0, 1},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
