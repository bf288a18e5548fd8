// Sigmoid: y = 1 / (1 + e^-x).
// dx = dy y (1 - y) (ofsdp.SigmoidGrad(dy, y)); y is enough, so x need not be kept.
// https://onnx.ai/onnx/operators/onnx__Sigmoid.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.SigmoidGrad", {b.grad_output(0), b.output(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return 1 / (1 + std::exp(-x)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double dy, double y) { return dy * y * (1 - y); });
}

OFSDP_MULTIARCH void sigmoid_span(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return 1.0f / (1.0f + vector_exp(-v)); });
}

OFSDP_MULTIARCH void sigmoid_grad_row(const BinaryRow<float>& row) {
  binary_row(row, [](float dy, float y) { return dy * y * (1.0f - y); });
}

}  // namespace

void add_sigmoid(Registry& registry) {
  registry.add({.name = "Sigmoid",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<float>, create_unary<sigmoid_span>}},
                .samples = [] { return unary_samples(); },
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
  registry.add(
      {.domain = kOwnDomain,
       .name = "SigmoidGrad",
       .min_inputs = 2,
       .infer = infer_binary,
       .reference = grad_reference,
       .cpu = {{"loops", accepts_binary<float>, create_binary<float, float, sigmoid_grad_row>}},
       .samples = [] { return pair_samples(); },
       .inplace_inputs = {0, 1},
       .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
