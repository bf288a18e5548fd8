// Abs: y = |x|.
// dx = dy sign(x), 0 at 0 (ofsdp.AbsGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Abs.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.AbsGrad", {b.grad_output(0), b.input(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double v) { return std::abs(v); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double v) { return v > 0 ? d : v < 0 ? -d : 0; });
}

OFSDP_MULTIARCH void abs_span(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return __builtin_fabsf(v); });
}

OFSDP_MULTIARCH void abs_grad_row(const BinaryRow<float>& row) {
  binary_row(row, [](float d, float v) { return v > 0.0f ? d : (v < 0.0f ? -d : 0.0f); });
}

}  // namespace

void add_abs(Registry& registry) {
  registry.add({.name = "Abs",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<float>, create_unary<abs_span>}},
                .samples = [] { return unary_samples(); },
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
  registry.add(
      {.domain = kOwnDomain,
       .name = "AbsGrad",
       .min_inputs = 2,
       .infer = infer_binary,
       .reference = grad_reference,
       .cpu = {{"loops", accepts_binary<float>, create_binary<float, float, abs_grad_row>}},
       .samples = [] { return pair_samples(); },
       .inplace_inputs = {0, 1},
       .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
