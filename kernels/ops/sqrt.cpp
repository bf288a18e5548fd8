// Sqrt: y = sqrt(x). dx = dy / (2 y).
// https://onnx.ai/onnx/operators/onnx__Sqrt.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref half = b.scalar(b.desc(b.grad_output(0)).dtype, 0.5);
  const Ref scaled = b.emit1("Mul", {b.grad_output(0), half});
  b.set_grad(0, b.emit1("Div", {scaled, b.output(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::sqrt(x); });
}

OFSDP_MULTIARCH void sqrt_span(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return __builtin_sqrtf(v); });
}

void fill(size_t, std::vector<double>& values) {
  for (double& v : values) v = std::abs(v) + 0.25;
}

std::vector<SampleCase> samples() { return unary_samples(fill); }

}  // namespace

void add_sqrt(Registry& registry) {
  registry.add({.name = "Sqrt",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<float>, create_unary<sqrt_span>}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
