// Celu, attribute alpha (1): y = max(0, x) + min(0, alpha (e^(x / alpha) - 1)).
// dx = dy where x > 0, else dy e^(x / alpha) (ofsdp.CeluGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Celu.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "CeluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return unary_reference(
      c, [=](double x) { return std::max(0.0, x) + std::min(0.0, alpha * std::expm1(x / alpha)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return binary_reference(c,
                          [=](double d, double x) { return x > 0 ? d : d * std::exp(x / alpha); });
}

struct Celu {
  float alpha;
  explicit Celu(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    const T a = static_cast<T>(alpha);
    return x > T{0} ? x : a * math::expm1(x / a);
  }
};

struct CeluGrad {
  float alpha;
  explicit CeluGrad(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x > T{0} ? d : d * math::exp(x / static_cast<T>(alpha));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 2.0f}});
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

}  // namespace

void add_celu(Registry& registry) {
  registry.add(pointwise({.name = "Celu",
                          .first_opset = 28,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Celu>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "CeluGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<CeluGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 2.0f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
