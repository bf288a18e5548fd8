// Mish: y = x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2).
// With t = tanh(ln(1 + e^x)) and s = 1 / (1 + e^-x): dx = dy (t + x (1 - t^2) s), where
// 1 - t^2 = 4 (n + 1) / (n + 2)^2 (ofsdp.MishGrad(dy, x)). Beyond 20, y is x.
// https://onnx.ai/onnx/operators/onnx__Mish.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "MishGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double x) {
    const double t = std::tanh(std::log1p(std::exp(x)));
    return d * (t + x * (1 - t * t) / (1 + std::exp(-x)));
  });
}

struct Mish {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    const T e = math::exp(x > T{20} ? T{20} : x);
    const T n = e * (e + T{2});
    return x * (n / (n + T{2}));
  }
};

struct MishGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    const T v = x > T{20} ? T{20} : x;
    const T e = math::exp(v);
    const T n = e * (e + T{2});
    const T slope = T{4} * (n + T{1}) / ((n + T{2}) * (n + T{2}));
    return d * (n / (n + T{2}) + v * slope * (e / (e + T{1})));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  return list;
}

}  // namespace

void add_mish(Registry& registry) {
  registry.add(pointwise({.name = "Mish",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Mish>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "MishGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<MishGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
