// Identity: y = x; a view. dx = dy.
// https://onnx.ai/onnx/operators/onnx__Identity.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.grad_output(0)); }

}  // namespace

void add_identity(Registry& registry) {
  registry.add({.name = "Identity",
                .infer = infer_same,
                .grad = grad,
                .reference = reference_of_view,
                .samples = [] { return unary_samples(); },
                .view = true,
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::kernels::ops
