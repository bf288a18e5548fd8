// Neg: y = -x. dx = -dy.
// https://onnx.ai/onnx/operators/onnx__Neg.html
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.emit1("Neg", {b.grad_output(0)})); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return -x; });
}

OFSDP_MULTIARCH void neg_span(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return -v; });
}

}  // namespace

void add_neg(Registry& registry) {
  registry.add({.name = "Neg",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<float>, create_unary<neg_span>}},
                .samples = [] { return unary_samples(); },
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
