// Erf: y = 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x.
// dx = dy 2 / sqrt(pi) e^-x^2 (ofsdp.ErfGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Erf.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "ErfGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::erf(x); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(
      c, [](double d, double x) { return d * 2 / std::sqrt(M_PI) * std::exp(-x * x); });
}

struct Erf {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::erf(x);
  }
};

struct ErfGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * (T(1.12837916709551257390) * math::exp(-x * x));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

void erf_grad_body(BodyBuilder& b) {
  const Ref x = b.input(1);
  const Ref slope = b.mul(b.emit1("Exp", {b.emit1("Neg", {b.mul(x, x)})}), 2 / std::sqrt(M_PI));
  b.set_output(0, b.mul(b.input(0), slope));
}

}  // namespace

void add_erf(Registry& registry) {
  registry.add(pointwise({.name = "Erf",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Erf>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "ErfGrad",
                               .body = erf_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<ErfGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
