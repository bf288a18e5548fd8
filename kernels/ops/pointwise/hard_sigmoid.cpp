// HardSigmoid, attributes alpha (0.2) and beta (0.5): y = max(0, min(1, alpha x + beta)).
// dx = alpha dy where 0 < alpha x + beta < 1, else 0 (ofsdp.HardSigmoidGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__HardSigmoid.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "HardSigmoidGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 0.2f));
  const auto beta = static_cast<double>(c.attributes.f("beta", 0.5f));
  return unary_reference(c,
                         [=](double x) { return std::max(0.0, std::min(1.0, alpha * x + beta)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 0.2f));
  const auto beta = static_cast<double>(c.attributes.f("beta", 0.5f));
  return binary_reference(c, [=](double d, double x) {
    return alpha * x + beta > 0 && alpha * x + beta < 1 ? alpha * d : 0;
  });
}

struct HardSigmoid {
  float alpha;
  float beta;
  explicit HardSigmoid(const Attributes& a) : alpha(a.f("alpha", 0.2f)), beta(a.f("beta", 0.5f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    const T line = static_cast<T>(alpha) * x + static_cast<T>(beta);
    const T below = line > T{1} ? T{1} : line;
    return below < T{0} ? T{0} : below;
  }
};

struct HardSigmoidGrad {
  float alpha;
  float beta;
  explicit HardSigmoidGrad(const Attributes& a)
      : alpha(a.f("alpha", 0.2f)), beta(a.f("beta", 0.5f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    const T line = static_cast<T>(alpha) * x + static_cast<T>(beta);
    return line > T{0} && line < T{1} ? static_cast<T>(alpha) * d : T{0};
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 0.5f}, {"beta", 0.6f}});
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

}  // namespace

void add_hard_sigmoid(Registry& registry) {
  registry.add(pointwise({.name = "HardSigmoid",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<HardSigmoid>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "HardSigmoidGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<HardSigmoidGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 0.5f}, {"beta", 0.6f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
