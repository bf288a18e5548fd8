// Relu: y = max(x, 0), of floats and signed integers.
// dx = dy where y > 0, else 0 (ofsdp.ReluGrad(dy, y)); y is enough, so x need not be kept.
// NaN stays NaN in y and stops the gradient, as in PyTorch.
// https://onnx.ai/onnx/operators/onnx__Relu.html
#include "kernels/core/standard_body.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_output(b, "ReluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return x < 0 ? 0 : x; });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double y) { return y > 0 ? d : 0; });
}

struct Relu {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};

struct ReluGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x > T{0} ? d : T{0};
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  append(list, vectors_of_types(kSignedIntegers));
  list.push_back(extreme_sample());
  return list;
}

void relu_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), zero = b.like(dy, 0);
  b.set_output(0, b.where(b.emit1("Greater", {b.input(1), zero}), dy, zero));
}

}  // namespace

void add_relu(Registry& registry) {
  registry.add(pointwise({.name = "Relu",
                          .first_opset = 14,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Relu, kFloatTypes | kSignedIntegers>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "ReluGrad",
                               .body = relu_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<ReluGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
