// Not: y = !x of bool. No gradient.
// https://onnx.ai/onnx/operators/onnx__Not.html
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  if (c.inputs[0].dtype != DType::kBool) {
    return input_error("expected bool, found {}", c.inputs[0].text());
  }
  return std::vector{c.inputs[0]};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double v) { return v == 0 ? 1.0 : 0.0; });
}

void not_span(const bool* x, bool* y, int64_t n) {
  unary_row(x, y, n, [](bool v) { return !v; });
}

std::vector<SampleCase> samples() {
  return {{.name = "matrix", .inputs = {{DType::kBool, {3, 5}}}},
          {.name = "empty", .inputs = {{DType::kBool, {0, 5}}}}};
}

}  // namespace

void add_not(Registry& registry) {
  registry.add({.name = "Not",
                .infer = infer,
                .reference = reference,
                .cpu = {{"loops", accepts_unary<bool>, create_unary<not_span>}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
