// Softplus: y = ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), which does not overflow.
// dx = dy / (1 + e^-x) (ofsdp.SoftplusGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Softplus.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "SoftplusGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(
      c, [](double x) { return (x < 0 ? 0 : x) + std::log1p(std::exp(-std::abs(x))); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double x) { return d / (1 + std::exp(-x)); });
}

struct Softplus {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return (x < T{0} ? T{0} : x) + math::log1p(math::exp(-math::fabs(x)));
  }
};

struct SoftplusGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * math::sigmoid(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

void softplus_grad_body(BodyBuilder& b) {
  b.set_output(0, b.mul(b.input(0), b.emit1("Sigmoid", {b.input(1)})));
}

}  // namespace

void add_softplus(Registry& registry) {
  registry.add(pointwise({.name = "Softplus",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Softplus>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "SoftplusGrad",
                               .body = softplus_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<SoftplusGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
