// Elu, attribute alpha (1): y = x where x > 0, else alpha (e^x - 1).
// dx = dy where x > 0, else dy alpha e^x (ofsdp.EluGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Elu.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "EluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return unary_reference(c, [=](double x) { return x > 0 ? x : alpha * std::expm1(x); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return binary_reference(c,
                          [=](double d, double x) { return x > 0 ? d : d * alpha * std::exp(x); });
}

struct Elu {
  float alpha;
  explicit Elu(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x > T{0} ? x : static_cast<T>(alpha) * math::expm1(x);
  }
};

struct EluGrad {
  float alpha;
  explicit EluGrad(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x > T{0} ? d : d * (static_cast<T>(alpha) * math::exp(x));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 2.0f}});
  list.push_back(extreme_sample({{"alpha", 2.0f}}));
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

void elu_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1);
  const double alpha = static_cast<double>(b.attributes().f("alpha", 1.0f));
  const Ref bent = b.mul(b.mul(dy, b.emit1("Exp", {x})), alpha);
  b.set_output(0, b.where(b.emit1("Greater", {x, b.like(x, 0)}), dy, bent));
}

}  // namespace

void add_elu(Registry& registry) {
  registry.add(pointwise({.name = "Elu",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Elu>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "EluGrad",
                               .body = elu_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<EluGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 2.0f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
