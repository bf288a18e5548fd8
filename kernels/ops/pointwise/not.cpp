// Not: y = !x of bool. No gradient.
// https://onnx.ai/onnx/operators/onnx__Not.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return x == 0 ? 1.0 : 0.0; });
}

struct Not {
  OFSDP_INLINE bool operator()(bool x) const { return !x; }
};

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  if (c.inputs[0].dtype != DType::kBool) {
    return input_error("expected bool, found {}", c.inputs[0].text());
  }
  return std::vector{c.inputs[0]};
}

std::vector<SampleCase> samples() {
  return {{.name = "matrix", .inputs = {{DType::kBool, {3, 5}}}},
          {.name = "empty", .inputs = {{DType::kBool, {0, 5}}}}};
}

}  // namespace

void add_not(Registry& registry) {
  registry.add(pointwise({.name = "Not",
                          .first_opset = 1,
                          .infer = infer,
                          .reference = reference,
                          .cpu = unary_kernels<Not, kBoolType>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
