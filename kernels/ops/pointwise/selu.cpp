// Selu, attributes alpha and gamma: y = gamma x where x > 0, else gamma alpha (e^x - 1).
// dx = dy gamma where x > 0, else dy gamma alpha e^x (ofsdp.SeluGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Selu.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "SeluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.67326319217681884765625f));
  const auto gamma = static_cast<double>(c.attributes.f("gamma", 1.05070102214813232421875f));
  return unary_reference(c, [=](double x) { return gamma * (x > 0 ? x : alpha * std::expm1(x)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.67326319217681884765625f));
  const auto gamma = static_cast<double>(c.attributes.f("gamma", 1.05070102214813232421875f));
  return binary_reference(
      c, [=](double d, double x) { return d * gamma * (x > 0 ? 1.0 : alpha * std::exp(x)); });
}

struct Selu {
  float alpha;
  float gamma;
  explicit Selu(const Attributes& a)
      : alpha(a.f("alpha", 1.67326319217681884765625f)),
        gamma(a.f("gamma", 1.05070102214813232421875f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return static_cast<T>(gamma) * (x > T{0} ? x : static_cast<T>(alpha) * math::expm1(x));
  }
};

struct SeluGrad {
  float alpha;
  float gamma;
  explicit SeluGrad(const Attributes& a)
      : alpha(a.f("alpha", 1.67326319217681884765625f)),
        gamma(a.f("gamma", 1.05070102214813232421875f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * static_cast<T>(gamma) * (x > T{0} ? T{1} : static_cast<T>(alpha) * math::exp(x));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 2.0f}, {"gamma", 3.0f}});
  list.push_back(extreme_sample({{"alpha", 2.0f}, {"gamma", 3.0f}}));
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

}  // namespace

void add_selu(Registry& registry) {
  registry.add(pointwise({.name = "Selu",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Selu>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "SeluGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<SeluGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 2.0f}, {"gamma", 3.0f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
