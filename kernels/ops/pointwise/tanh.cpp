// Tanh: y = (e^x - e^-x) / (e^x + e^-x).
// dx = dy (1 - y^2) (ofsdp.TanhGrad(dy, y)); y is enough, so x need not be kept.
// https://onnx.ai/onnx/operators/onnx__Tanh.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_output(b, "TanhGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::tanh(x); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double y) { return d * (1 - y * y); });
}

struct Tanh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::tanh(x);
  }
};

struct TanhGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * (T{1} - x * x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

void tanh_grad_body(BodyBuilder& b) {
  const Ref y = b.input(1);
  b.set_output(0, b.mul(b.input(0), b.sub(b.like(y, 1), b.mul(y, y))));
}

}  // namespace

void add_tanh(Registry& registry) {
  registry.add(pointwise({.name = "Tanh",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Tanh>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "TanhGrad",
                               .body = tanh_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<TanhGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
