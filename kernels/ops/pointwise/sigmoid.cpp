// Sigmoid: y = 1 / (1 + e^-x).
// dx = dy y (1 - y) (ofsdp.SigmoidGrad(dy, y)); y is enough, so x need not be kept.
// https://onnx.ai/onnx/operators/onnx__Sigmoid.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_output(b, "SigmoidGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return 1 / (1 + std::exp(-x)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double y) { return d * y * (1 - y); });
}

struct Sigmoid {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::sigmoid(x);
  }
};

struct SigmoidGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * x * (T{1} - x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

void sigmoid_grad_body(BodyBuilder& b) {
  const Ref y = b.input(1);
  b.set_output(0, b.mul(b.mul(b.input(0), y), b.sub(b.like(y, 1), y)));
}

}  // namespace

void add_sigmoid(Registry& registry) {
  registry.add(pointwise({.name = "Sigmoid",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Sigmoid>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "SigmoidGrad",
                               .body = sigmoid_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<SigmoidGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
