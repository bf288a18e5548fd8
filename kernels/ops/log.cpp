// Log: y = ln(x). dx = dy / x.
// https://onnx.ai/onnx/operators/onnx__Log.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.emit1("Div", {b.grad_output(0), b.input(0)})); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::log(x); });
}

OFSDP_MULTIARCH void log_span(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return std::log(v); });
}

void fill(size_t, std::vector<double>& values) {
  for (double& v : values) v = std::abs(v) + 0.25;
}

std::vector<SampleCase> samples() { return unary_samples(fill); }

}  // namespace

void add_log(Registry& registry) {
  registry.add({.name = "Log",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<float>, create_unary<log_span>}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
