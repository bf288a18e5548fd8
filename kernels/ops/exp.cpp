// Exp: y = e^x. dx = dy y.
// https://onnx.ai/onnx/operators/onnx__Exp.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.emit1("Mul", {b.grad_output(0), b.output(0)})); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::exp(x); });
}

OFSDP_MULTIARCH void exp_span(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return vector_exp(v); });
}

}  // namespace

void add_exp(Registry& registry) {
  registry.add({.name = "Exp",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<float>, create_unary<exp_span>}},
                .samples = [] { return unary_samples(); },
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
